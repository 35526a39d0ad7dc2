// The mLSTM and the LSTM over a window, fp32, forward and backward in one call each: no dispatch per step.
//
// A step is one or two matrix products with pointwise work on what they give. Weights are packed once a window into panels
// of four vectors (`NR` columns); a tile of a product stays in registers over all of its sum, and the pointwise work is done
// on it before the next tile is begun, so that gates pass through memory only where backward needs them. A panel of the
// gates holds the four gates of the same units. All threads stay inside one parallel region for all steps.
//
// An element is summed over k in ascending order whatever the batch, the number of threads or its place: a row's result
// does not depend on the rows beside it.
//
// Rows are contiguous; T steps, B rows, H units. Gates lie in the order input, forget, output, candidate. exp and tanh are
// polynomials on vectors; inf and NaN go through as they should. Plain C interface for ctypes; threads are OpenMP's, whose
// runtime is torch's. Without wmh (null) the model is an LSTM: m = h, and the inputs are 4H wide instead of 5H.

#include <omp.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, MR = 14;  // floats in a vector; rows of a tile: with two vectors each, 28 of 32 registers hold sums
#elif defined(__AVX__)
constexpr int W = 8, MR = 6;  // 12 of 16
#else
constexpr int W = 4, MR = 6;
#endif
constexpr int NR = 4 * W;  // columns of a panel, which lies as two halves of NR / 2

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));

inline V all(float x) { return x - V{}; }

inline V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }

// The first n of a vector; zeros behind them.
inline V load(const float* p, int64_t n) {
    if (n >= W) return load(p);
    V v = {};
    if (n > 0) std::memcpy(&v, p, n * sizeof(float));
    return v;
}

inline void store(float* p, V v, int64_t n) {
    if (n >= W)
        store(p, v);
    else if (n > 0)
        std::memcpy(p, &v, n * sizeof(float));
}

// What is not read again soon goes past the caches, where it would drive out the weights.
inline void store_past(float* p, V v, int64_t n) {
#if defined(__AVX512F__)
    if (n >= W && reinterpret_cast<uintptr_t>(p) % sizeof v == 0) return _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
    if (n >= W && reinterpret_cast<uintptr_t>(p) % sizeof v == 0) return _mm256_stream_ps(p, (__m256)v);
#endif
    store(p, v, n);
}

// 1 / x for x in [1, 3e38]: an estimate of 14 bits and one Newton step are faster than a division, and as good as fp32.
inline V inverse(V x) {
#if defined(__AVX512F__)
    const V r = (V)_mm512_rcp14_ps((__m512)x);
    return r * (2.0f - x * r);
#else
    return 1.0f / x;
#endif
}

inline V exp_(V x) {
    x = x > all(88.0f) ? all(88.0f) : x;  // comparisons are false for NaN, which therefore stays
    x = x < all(-87.0f) ? all(-87.0f) : x;
    const V n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // to the nearest integer
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    V p = all(1.9875691500e-4f);  // Cephes' expf on [-ln 2 / 2, ln 2 / 2]
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const I bits = (__builtin_convertvector(n, I) + 127) << 23;
    return p * (V)bits;  // the same bits read as floats
}

inline V sigmoid_(V x) { return inverse(1.0f + exp_(-x)); }

inline V tanh_(V x) {
    const V z = x * x;  // Cephes' tanhf: a polynomial near 0, where the formula with exp would cancel
    V p = all(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const V small = p * z * x + x;
    const V big = 1.0f - 2.0f * inverse(exp_(2.0f * x) + 1.0f);
    return z < all(0.390625f) ? small : big;
}

inline int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// A panel lies in chunks of kChunk rows, each as two halves (rows, NR / 2): a half fits the second-level cache beside the
// next one, which is fetched meanwhile.
constexpr int64_t kChunk = 1024;

// Where column c of row k lies in a panel of K rows.
inline int64_t at_panel(int64_t k, int64_t c, int64_t K) {
    const int64_t start = k / kChunk * kChunk, rows = std::min(kChunk, K - start);
    return start * NR + (c / (2 * W) * rows + k - start) * 2 * W + c % (2 * W);
}

// c[R][NR], half of the columns: (+)= a (R rows of K) times half a chunk b (K, NR / 2). `a` lies in rows lda apart, or packed
// as (K, MR). Fetches K cache lines from `ahead` on unless null.
template <int R, bool PackedA, bool Ahead>
inline void half_tile(const float* a, int64_t lda, const float* b, int64_t K, bool add, float* c, const float* ahead) {
    V sum[R][2] = {};
    if (add)
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][0] = load(c + r * NR), sum[r][1] = load(c + r * NR + W);
    for (int64_t k = 0; k < K; ++k) {
        if (Ahead) __builtin_prefetch(ahead + k * 16, 0, 2);
        const V b0 = load(b + k * 2 * W), b1 = load(b + k * 2 * W + W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float x = PackedA ? a[k * MR + r] : a[r * lda + k];
            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store(c + r * NR, sum[r][0]), store(c + r * NR + W, sum[r][1]);
}

// c[rows][NR] (+)= a times a whole chunk, for 1 to MR rows.
template <bool PackedA, bool Ahead, int R = MR>
inline void tile(int64_t rows, const float* a, int64_t lda, const float* b, int64_t K, bool add, float* c,
                 const float* ahead) {
    if constexpr (R > 1)
        if (rows < R) return tile<PackedA, Ahead, R - 1>(rows, a, lda, b, K, add, c, ahead);
    half_tile<R, PackedA, Ahead>(a, lda, b, K, add, c, ahead);
    half_tile<R, PackedA, Ahead>(a, lda, b + K * 2 * W, K, add, c + 2 * W, ahead + K * 16);
}

// One thread's part of (panels x rows). Threads that own whole rows need nothing from one another in any step, so panels are
// split only where there are too few rows for all threads.
struct Share {
    int64_t first_panel, last_panel, first_row, last_row;

    Share(int64_t panels, int64_t rows) {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t down = std::clamp<int64_t>(rows / 16, 1, threads), across = threads / down;
        const int64_t p = thread % across, r = std::min(thread / across, down);  // what is left over does nothing
        first_panel = panels * p / across, last_panel = panels * (p + 1) / across;
        first_row = rows * r / down, last_row = rows * std::min(r + 1, down) / down;
        alone = across == 1;
    }

    bool alone;  // with its rows

    // Between products: waits until the other threads have their columns of these rows.
    void meet() const {
        if (alone) return;
#pragma omp barrier
    }

    // f(first row, rows) for blocks of nearly equal size, at most MR.
    template <class F>
    void blocks(F f) const {
        const int64_t rows = last_row - first_row, count = up(rows, MR);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t first = first_row + rows * i / count;
            f(first, first_row + rows * (i + 1) / count - first);
        }
    }
};

// Asks for huge pages under a large buffer that nobody has written to yet: a window keeps hundreds of megabytes, and the first
// touch of each small page costs as much as filling it.
inline void use_huge_pages(float* p, int64_t floats) {
#if defined(__linux__)
    constexpr uintptr_t kHuge = 1 << 21;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(p) + kHuge - 1) / kHuge * kHuge;
    const uintptr_t last = reinterpret_cast<uintptr_t>(p + floats) / kHuge * kHuge;
    if (p && first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // no matter if refused
#endif
}

// Room for floats, aligned to cache lines.
struct Scratch {
    explicit Scratch(int64_t floats) : memory(static_cast<float*>(std::aligned_alloc(64, up(floats, 16) * 64 + 64))) {}
    ~Scratch() { std::free(memory); }
    Scratch(const Scratch&) = delete;
    operator float*() const { return memory; }
    float* const memory;
};

// This thread's tiles of a (B, K) times packed panels; done(row, rows, panel, tile) takes each. Scratch holds a panel of rows.
template <class Done>
void product(const float* a, int64_t lda, const float* packed, int64_t K, const Share& share, float* scratch, Done done) {
    for (int64_t p = share.first_panel; p < share.last_panel; ++p)
        for (int64_t start = 0; start < K; start += kChunk) {
            const int64_t k = std::min(kChunk, K - start), lines = 2 * k;  // of a half
            const float *chunk = packed + (p * K + start) * NR, *ahead = chunk + k * NR, *end = ahead + 2 * lines * 16;
            const bool last = start + k == K;
            share.blocks([&](int64_t row, int64_t rows) {
                float* c = scratch + (row - share.first_row) * NR;
                if (ahead < end)
                    tile<false, true>(rows, a + row * lda + start, lda, chunk, k, start > 0, c, ahead);
                else
                    tile<false, false>(rows, a + row * lda + start, lda, chunk, k, start > 0, c, nullptr);
                ahead += lines * 16;
                if (last) done(row, rows, p, c);
            });
        }
}

// Gradients of the gates before their nonlinearity from d_h and d_c, n units; d_c becomes that of the cell before.
inline void update_backward(const float* gates, const float* before, const float* after, V d_h, float* d_c, float* d_gates,
                            int64_t H, int64_t n, bool zero) {
    const V i = load(gates, n), f = load(gates + H, n), o = load(gates + 2 * H, n), u = load(gates + 3 * H, n);
    const V t = tanh_(load(after, n));
    const V d = load(d_c, n) + d_h * o * (1.0f - t * t);
    store(d_gates, d * u * i * (1.0f - i), n);
    // Where a row was reset, the cell before may hold anything, even a NaN.
    store(d_gates + H, zero ? V{} : d * load(before, n) * f * (1.0f - f), n);
    store(d_gates + 2 * H, d_h * t * o * (1.0f - o), n);
    store(d_gates + 3 * H, d * i * (1.0f - u * u), n);
    store(d_c, zero ? V{} : d * f, n);
}

// The weights of a forward pass in fp32, and one thread's use of them.
struct Float {
    const float *wh, *wmh;

    struct Worker {
        Worker(const Float& weights, int64_t H, const Share& wide, const Share& narrow)
            : w(weights), H(H), wide(wide), narrow(narrow), scratch((wide.last_row - wide.first_row) * NR) {}
        template <class Done>
        void to_m(const float* h, Done done) {
            product(h, H, w.wmh, H, wide, scratch, done);
        }
        template <class Done>
        void to_gates(const float* m, Done done) {
            product(m, H, w.wh, H, narrow, scratch, done);
        }
        const Float& w;
        const int64_t H;
        const Share &wide, &narrow;
        const Scratch scratch;
    };
};

#if defined(__AVX512VNNI__)
// A weight in eight bits: panels of four rows of k to a 32-bit word, then for each column its scale and what the offset of
// 128 in the other factor adds to its sums.
struct Int8Weight {
    Int8Weight(void* memory, int64_t panels, int64_t K)
        : panels(panels), K(K), words(up(K, 4)), data(static_cast<int8_t*>(memory)),
          scale(reinterpret_cast<float*>(data + panels * words * 4 * NR)),
          offset(reinterpret_cast<int32_t*>(scale + panels * NR)) {}

    static int64_t bytes(int64_t panels, int64_t K) { return panels * (up(K, 4) * 4 + 8) * NR; }

    int8_t& at(int64_t p, int64_t k, int64_t c) const {
        return data[((p * 2 + c / (2 * W)) * words + k / 4) * 8 * W + c % (2 * W) * 4 + k % 4];
    }

    // row_of(panel, column): K weights of that output, or null beyond the last.
    template <class RowOf>
    void pack(RowOf row_of) const {
        std::memset(data, 0, panels * words * 4 * NR);
        for (int64_t p = 0; p < panels; ++p)
            for (int64_t c = 0; c < NR; ++c) {
                const float* row = row_of(p, c);
                float largest = 0.0f;
                for (int64_t k = 0; row && k < K; ++k) largest = std::max(largest, std::fabs(row[k]));
                const float unit = largest > 0.0f ? largest / 127.0f : 1.0f;
                int32_t sum = 0;
                for (int64_t k = 0; row && k < K; ++k) {
                    const int8_t q = static_cast<int8_t>(std::lrint(row[k] / unit));
                    at(p, k, c) = q, sum += q;
                }
                scale[p * NR + c] = unit, offset[p * NR + c] = 128 * sum;
            }
    }

    int64_t panels, K, words;
    int8_t* data;
    float* scale;
    int32_t* offset;
};

// c[R][NR], half of the columns: the sums of R rows of words times half a panel.
template <int R>
inline void half_tile_int8(const uint8_t* a, int64_t lda, const int8_t* b, int64_t words, int32_t* c) {
    __m512i sum[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < words; ++k) {
        const __m512i b0 = _mm512_loadu_si512(b + k * 8 * W), b1 = _mm512_loadu_si512(b + k * 8 * W + 4 * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            int32_t word;
            std::memcpy(&word, a + r * lda + 4 * k, 4);
            const __m512i x = _mm512_set1_epi32(word);
            sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], x, b0);
            sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], x, b1);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        _mm512_storeu_si512(c + r * NR, sum[r][0]), _mm512_storeu_si512(c + r * NR + W, sum[r][1]);
}

template <int R = MR>
inline void tile_int8(int64_t rows, const uint8_t* a, int64_t lda, const int8_t* b, int64_t words, int32_t* c) {
    if constexpr (R > 1)
        if (rows < R) return tile_int8<R - 1>(rows, a, lda, b, words, c);
    half_tile_int8<R>(a, lda, b, words, c);
    half_tile_int8<R>(a, lda, b + words * 8 * W, words, c + 2 * W);
}

struct Int8 {
    Int8Weight wh, wmh;

    struct Worker {
        Worker(const Int8& weights, int64_t H, const Share& wide, const Share& narrow)
            : w(weights), H(H), wide(wide), narrow(narrow), stride(up(H, 64) * 64),
              memory((wide.last_row - wide.first_row) * (stride / 4 + 1)), rows(reinterpret_cast<uint8_t*>(memory.memory)),
              scales(memory.memory + (wide.last_row - wide.first_row) * stride / 4) {}
        template <class Done>
        void to_m(const float* h, Done done) {
            times(h, w.wmh, wide, done);
        }
        template <class Done>
        void to_gates(const float* m, Done done) {
            times(m, w.wh, narrow, done);
        }

        template <class Done>
        void times(const float* a, const Int8Weight& weight, const Share& share, Done done) {
            for (int64_t b = share.first_row; b < share.last_row; ++b) round(a + b * H, b - share.first_row);
            for (int64_t p = share.first_panel; p < share.last_panel; ++p)
                share.blocks([&](int64_t row, int64_t count) {
                    alignas(64) int32_t sums[MR * NR];
                    alignas(64) float c[MR * NR];
                    const int64_t first = row - share.first_row;
                    tile_int8(count, rows + first * stride, stride, weight.data + p * weight.words * 4 * NR, weight.words, sums);
                    for (int64_t r = 0; r < count; ++r)
                        for (int q = 0; q < 4; ++q) {
                            const int64_t column = p * NR + q * W;
                            I sum, offset;
                            std::memcpy(&sum, sums + r * NR + q * W, sizeof sum);
                            std::memcpy(&offset, weight.offset + column, sizeof offset);
                            const V scale = load(weight.scale + column) * scales[first + r];
                            store(c + r * NR + q * W, __builtin_convertvector(sum - offset, V) * scale);
                        }
                    done(row, count, p, c);
                });
        }

        // One row to 1 ... 255 around 128.
        void round(const float* from, int64_t row) {
            V largest = {};
            for (int64_t k = 0; k < H; k += W) {
                const V x = load(from + k, H - k), size = x < V{} ? -x : x;
                largest = size > largest ? size : largest;
            }
            float unit = 0.0f;
            for (int j = 0; j < W; ++j) unit = std::max(unit, largest[j]);
            unit = unit > 0.0f ? unit / 127.0f : 1.0f;
            scales[row] = unit;
            for (int64_t k = 0; k < H; k += W) {
                const __m512i q = _mm512_cvtps_epi32((__m512)(load(from + k, H - k) * (1.0f / unit) + 128.0f));
                _mm_storeu_si128(reinterpret_cast<__m128i*>(rows + row * stride + k), _mm512_cvtusepi32_epi8(q));
            }
        }

        const Int8& w;
        const int64_t H;
        const Share &wide, &narrow;
        const int64_t stride;
        const Scratch memory;
        uint8_t* const rows;
        float* const scales;
    };
};
#endif

template <class Weights>
void forward(const Weights& weights, bool lstm, const float* x, const int64_t* tokens, const uint8_t* reset, const float* h0,
             const float* c0, float* hidden, float* cell, float* gates, float* z, float* m, int64_t T, int64_t B, int64_t H,
             int cells, int threads) {
    const int64_t BH = B * H, width = lstm ? 4 * H : 5 * H;
    use_huge_pages(hidden, T * BH), use_huge_pages(cell, (cells ? T : 1) * BH);
#pragma omp parallel num_threads(threads)
    {
        const Share wide(up(H, NR), B);
        const Share narrow(up(H, W), B);
        typename Weights::Worker work(weights, H, wide, narrow);
        for (int64_t t = 0; t < T; ++t) {
            const float* h = t ? hidden + (t - 1) * BH : h0;
            const float* c = t ? cell + (cells ? (t - 1) * BH : 0) : c0;
            float* h_next = hidden + t * BH;
            float* c_next = cell + (cells ? t * BH : 0);
            const uint8_t* zero = reset ? reset + t * B : nullptr;
            const auto x_of = [&](int64_t b) { return x + (tokens ? tokens[t * B + b] : t * B + b) * width; };
            if (!lstm) {
                work.to_m(h, [&](int64_t row, int64_t rows, int64_t p, const float* tile) {
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t q = 0, unit = p * NR; q < 4 && unit < H; ++q, unit += W) {
                            const int64_t b = row + r, at = b * H + unit, n = H - unit;
                            const V z_b = zero && zero[b] ? V{} : load(tile + r * NR + q * W);
                            if (z) store_past(z + t * BH + at, z_b, n);
                            store(m + at, z_b * load(x_of(b) + 4 * H + unit, n), n);
                        }
                });
            } else if (zero) {
                const int64_t first = std::min(wide.first_panel * NR, H), count = std::min(wide.last_panel * NR, H) - first;
                for (int64_t b = wide.first_row; b < wide.last_row; ++b) {
                    if (zero[b])
                        std::memset(m + b * H + first, 0, count * sizeof(float));
                    else
                        std::memcpy(m + b * H + first, h + b * H + first, count * sizeof(float));
                }
            }
            wide.meet();
            const float* factor = lstm && !zero ? h : m;
            work.to_gates(factor, [&](int64_t row, int64_t rows, int64_t p, const float* tile) {
                const int64_t unit = p * W, n = H - unit;
                for (int64_t r = 0; r < rows; ++r) {
                    const int64_t b = row + r, at = b * H + unit;
                    const float* x_b = x_of(b) + unit;
                    const float* sum = tile + r * NR;
                    const bool zeroed = zero && zero[b];
                    const V i = sigmoid_(load(sum) + load(x_b, n));
                    // A closed forget gate also cuts the gradient.
                    const V f = zeroed ? V{} : sigmoid_(load(sum + W) + load(x_b + H, n));
                    const V o = sigmoid_(load(sum + 2 * W) + load(x_b + 2 * H, n));
                    const V u = tanh_(load(sum + 3 * W) + load(x_b + 3 * H, n));
                    const V next = zeroed ? i * u : f * load(c + at, n) + i * u;
                    store(c_next + at, next, n);
                    store(h_next + at, o * tanh_(next), n);
                    if (gates) {
                        float* g = gates + (t * B + b) * 4 * H + unit;
                        store_past(g, i, n), store_past(g + H, f, n), store_past(g + 2 * H, o, n), store_past(g + 3 * H, u, n);
                    }
                }
            });
            wide.meet();
        }
    }
}

}  // namespace

extern "C" {

// Floats of each of the two packed buffers: those of (4H, H) and (H, H).
int64_t mlstm_packed_size(int64_t H, int recurrent) { return recurrent ? up(H, NR) * H * NR : std::max(up(H, W), 4 * up(H, NR)) * H * NR; }

// For the forward pass: wh (4H, H) in panels of the four gates of W units, wmh (H, H) transposed in panels of NR units.
void mlstm_pack_forward(const float* wh, const float* wmh, float* packed_wh, float* packed_wmh, int64_t H, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < up(H, W); ++p) {
            float* panel = packed_wh + p * H * NR;
            for (int64_t column = 0; column < NR; ++column) {
                const int64_t unit = p * W + column % W;
                const float* row = wh + (column / W * H + unit) * H;
                for (int64_t k = 0; k < H; ++k) panel[at_panel(k, column, H)] = unit < H ? row[k] : 0.0f;
            }
        }
#pragma omp for schedule(static)
        for (int64_t p = 0; p < (wmh ? up(H, NR) : 0); ++p) {
            float* panel = packed_wmh + p * H * NR;
            for (int64_t column = 0; column < NR; ++column) {
                const int64_t unit = p * NR + column;
                const float* row = wmh + unit * H;
                for (int64_t k = 0; k < H; ++k) panel[at_panel(k, column, H)] = unit < H ? row[k] : 0.0f;
            }
        }
    }
}

// For the backward pass: wh (4H, H) and wmh (H, H) as they are, in panels of NR columns.
void mlstm_pack_backward(const float* wh, const float* wmh, float* packed_wh, float* packed_wmh, int64_t H, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < up(H, NR); ++p) {
        const int64_t n = std::min<int64_t>(NR, H - p * NR);
        for (int part = 0; part < (wmh ? 2 : 1); ++part) {
            const float* from = (part ? wmh : wh) + p * NR;
            const int64_t K = part ? H : 4 * H;
            float* panel = (part ? packed_wmh : packed_wh) + p * K * NR;
            for (int64_t k = 0; k < K; ++k)
                for (int q = 0; q < 4; ++q) store(panel + at_panel(k, q * W, K), load(from + k * H + q * W, n - q * W));
        }
    }
}

// Runs T steps with weights from `mlstm_pack_forward` from the state (h0, c0), (B, H) each. `x` is (T, B, 5H), or with
// `tokens` (T, B) a table (V, 5H). hidden is (T, B, H) and so is cell, or (1, B, H) if `cells` is 0. For backward, gates
// (T, B, 4H) and z = wmh h (T, B, H) are filled unless null. m (B, H) is scratch.
void mlstm_forward(const float* wh, const float* wmh, const float* x, const int64_t* tokens, const uint8_t* reset,
                   const float* h0, const float* c0, float* hidden, float* cell, float* gates, float* z, float* m, int64_t T,
                   int64_t B, int64_t H, int cells, int threads) {
    use_huge_pages(gates, T * B * 4 * H), use_huge_pages(z, T * B * H);
    forward(Float{wh, wmh}, wmh == nullptr, x, tokens, reset, h0, c0, hidden, cell, gates, z, m, T, B, H, cells, threads);
}

#if defined(__AVX512VNNI__)
int mlstm_has_int8() { return 1; }

// Bytes of one packed weight in eight bits.
int64_t mlstm_int8_size(int64_t H, int recurrent) { return Int8Weight::bytes(recurrent ? up(H, NR) : up(H, W), H); }

// As `mlstm_pack_forward`, each output unit in eight bits with a scale of its own.
void mlstm_pack_int8(const float* wh, const float* wmh, void* packed_wh, void* packed_wmh, int64_t H) {
    Int8Weight(packed_wh, up(H, W), H).pack([&](int64_t p, int64_t c) {
        const int64_t unit = p * W + c % W;
        return unit < H ? wh + (c / W * H + unit) * H : nullptr;
    });
    if (!wmh) return;
    Int8Weight(packed_wmh, up(H, NR), H).pack([&](int64_t p, int64_t c) {
        return p * NR + c < H ? wmh + (p * NR + c) * H : nullptr;
    });
}

// As `mlstm_forward` with weights from `mlstm_pack_int8`; h and m are rounded to eight bits too, each row with its own scale.
void mlstm_forward_int8(void* wh, void* wmh, const float* x, const int64_t* tokens, const uint8_t* reset, const float* h0,
                        const float* c0, float* hidden, float* cell, float* m, int64_t T, int64_t B, int64_t H, int cells,
                        int threads) {
    const Int8 weights{Int8Weight(wh, up(H, W), H), Int8Weight(wmh, up(H, NR), H)};
    forward(weights, wmh == nullptr, x, tokens, reset, h0, c0, hidden, cell, nullptr, nullptr, m, T, B, H, cells, threads);
}
#else
int mlstm_has_int8() { return 0; }
#endif

// Walks T steps backwards with weights from `mlstm_pack_backward`. c0 (B, H) is the cell state before them. dh and dc (B, H)
// come as the gradients of the state after them and leave as those of the state before them. d_gates (T, B, 4H), d_xm, d_z
// and m (T, B, H) are filled for the gradients of inputs and weights; grad_h and grad_c (T, B, H) are added where they are
// not null. An LSTM has no z, d_xm, d_z and m.
void mlstm_backward(const float* wh, const float* wmh, const float* x, const int64_t* tokens, const uint8_t* reset,
                    const float* c0, const float* cell, const float* gates, const float* z, const float* grad_h, const float* grad_c,
                    float* dh, float* dc, float* d_gates, float* d_xm, float* d_z, float* m, int64_t T, int64_t B, int64_t H,
                    int threads) {
    const int64_t BH = B * H, width = 5 * H;
    // Step t from the gradient of its hidden state, one vector of row b from `unit` on.
    const auto pointwise = [&](int64_t t, int64_t b, int64_t unit, V d_h) {
        const int64_t at = b * H + unit, n = H - unit;
        if (grad_h) d_h += load(grad_h + t * BH + at, n);
        if (grad_c) store(dc + at, load(dc + at, n) + load(grad_c + t * BH + at, n), n);
        const float* before = t ? cell + (t - 1) * BH : c0;
        update_backward(gates + (t * B + b) * 4 * H + unit, before + at, cell + t * BH + at, d_h, dc + at,
                        d_gates + (t * B + b) * 4 * H + unit, H, n, reset && reset[t * B + b]);
    };
#pragma omp parallel num_threads(threads)
    {
        const Share share(up(H, NR), B);
        const Scratch scratch((share.last_row - share.first_row) * NR);
        for (int64_t b = share.first_row; b < share.last_row; ++b)
            for (int64_t unit = share.first_panel * NR; unit < std::min(share.last_panel * NR, H); unit += W)
                pointwise(T - 1, b, unit, load(dh + b * H + unit, H - unit));
        share.meet();
        for (int64_t t = T - 1; t >= 0; --t) {
            const uint8_t* zero = reset ? reset + t * B : nullptr;
            // The gradient of the hidden state before step t is that of the state after step t - 1.
            const auto pass_on = [&](int64_t row, int64_t rows, int64_t p, const float* tile) {
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t q = 0, unit = p * NR; q < 4 && unit < H; ++q, unit += W) {
                        const int64_t b = row + r;
                        const V d_h = !wmh && zero && zero[b] ? V{} : load(tile + r * NR + q * W);
                        if (t)
                            pointwise(t - 1, b, unit, d_h);
                        else
                            store(dh + b * H + unit, d_h, H - unit);
                    }
            };
            const float* d_g = d_gates + t * 4 * BH;
            if (wmh) {
                product(d_g, 4 * H, wh, 4 * H, share, scratch, [&](int64_t row, int64_t rows, int64_t p, const float* tile) {
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t q = 0, unit = p * NR; q < 4 && unit < H; ++q, unit += W) {
                            const int64_t b = row + r, at = t * BH + b * H + unit, n = H - unit;
                            const V d_m = load(tile + r * NR + q * W), z_b = load(z + at, n);
                            const V x_m = load(x + (tokens ? tokens[t * B + b] : t * B + b) * width + 4 * H + unit, n);
                            store(d_xm + at, d_m * z_b, n);
                            store(d_z + at, zero && zero[b] ? V{} : d_m * x_m, n);
                            store(m + at, z_b * x_m, n);
                        }
                });
                share.meet();
                product(d_z + t * BH, H, wmh, H, share, scratch, pass_on);
            } else {
                product(d_g, 4 * H, wh, 4 * H, share, scratch, pass_on);
            }
            share.meet();
        }
    }
}

// d_w (M, N) += a (R, M)^T b (R, N): the gradient of a weight over R rows. Scratch is for `mlstm_gradient_scratch` floats.
constexpr int64_t kRows = 256, kColumns = 392 / MR * MR;

constexpr int64_t kStride = kRows * MR + 16, kScratch = kColumns / MR * kStride + kRows * NR;

int64_t mlstm_gradient_scratch(int threads) { return threads * kScratch; }

void mlstm_weight_gradient(float* d_w, const float* a, const float* b, float* scratch, int64_t R, int64_t M, int64_t N,
                           int threads) {
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
        const int64_t blocks = up(M, MR), first = blocks * thread / count * MR;
        const int64_t last = std::min(M, blocks * (thread + 1) / count * MR);
        float* packed_a = scratch + thread * kScratch;
        float* packed_b = packed_a + kColumns / MR * kStride;
        for (int64_t row = 0; row < R; row += kRows)
            for (int64_t column = first; column < last; column += kColumns) {
                const int64_t K = std::min(kRows, R - row), m = std::min(kColumns, last - column);
                for (int64_t k = 0; k < K; ++k)
                    for (int64_t i = 0; i < m; i += MR) {
                        const float* from = a + (row + k) * M + column + i;
                        float* to = packed_a + i / MR * kStride + k * MR;
                        if (W >= MR)
                            store(to, load(from, std::min<int64_t>(W, m - i)));  // what is too much is overwritten next
                        else
                            for (int64_t r = 0; r < MR; ++r) to[r] = i + r < m ? from[r] : 0.0f;
                    }
                for (int64_t j = 0; j < N; j += NR) {
                    const int64_t n = std::min<int64_t>(NR, N - j);
                    for (int64_t k = 0; k < K; ++k)
                        for (int q = 0; q < 4; ++q)
                            store(packed_b + at_panel(k, q * W, K), load(b + (row + k) * N + j + q * W, n - q * W));
                    for (int64_t i = 0; i < m; i += MR) {
                        alignas(64) float c[MR * NR];
                        tile<true, false>(MR, packed_a + i / MR * kStride, 0, packed_b, K, false, c, nullptr);
                        for (int64_t r = 0; r < std::min<int64_t>(MR, m - i); ++r) {
                            float* to = d_w + (column + i + r) * N + j;
                            for (int q = 0; q < 4; ++q) {
                                const int64_t left = n - q * W;
                                if (left > 0) store(to + q * W, load(to + q * W, left) + load(c + r * NR + q * W), left);
                            }
                        }
                    }
                }
            }
    }
}

// Adds N rows of gradients to the rows of a table: d_table[tokens[n], first : first + columns] += d[n]. Each thread owns
// some columns, so that nothing is added twice at once and the order of additions is that of n.
void mlstm_table_backward(const float* d, const int64_t* tokens, float* d_table, int64_t N, int64_t columns, int64_t first,
                          int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; ++part) {
        const int64_t low = columns * part / threads, high = columns * (part + 1) / threads;
        for (int64_t n = 0; n < N; ++n) {
            float* __restrict row = d_table + tokens[n] * width + first;
            const float* __restrict from = d + n * columns;
            for (int64_t j = low; j < high; ++j) row[j] += from[j];
        }
    }
}

}  // extern "C"
