// The time loops of the mLSTM, fp32: forward and backward over a window in one call each, without a dispatch per step.
//
// A step is two matrix products, done by the MKL inside torch through the pointers in `Gemm` with weights that were packed
// once a window, and pointwise work in one pass over memory. Rows are contiguous; T steps, B rows, H units. Gates lie in the
// order input, forget, output, candidate. Plain C interface for ctypes; threads are OpenMP's, whose runtime is torch's.
//
// exp and tanh are polynomials that the compiler turns into vector code (the C library's are not); inf and NaN go through
// as they should.

#include <cstdint>
#include <cstring>

namespace {

inline float exp_(float x) {
    x = x > 88.0f ? 88.0f : x;  // comparisons are false for NaN, which therefore stays
    x = x < -87.0f ? -87.0f : x;
    const float n = __builtin_nearbyintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;  // Cephes' expf on [-ln 2 / 2, ln 2 / 2]
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

inline float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

inline float tanh_(float x) {
    const float z = x * x;  // Cephes' tanhf: a polynomial near 0, where the formula with exp would cancel
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float small = p * z * x + x;
    const float big = 1.0f - 2.0f / (exp_(2.0f * x) + 1.0f);
    return z < 0.390625f ? small : big;
}

// g = sigmoid(g + x)
inline void add_sigmoid(float* __restrict g, const float* __restrict x, int64_t n) {
    for (int64_t j = 0; j < n; ++j) g[j] = sigmoid_(g[j] + x[j]);
}

inline void add_tanh(float* __restrict g, const float* __restrict x, int64_t n) {
    for (int64_t j = 0; j < n; ++j) g[j] = tanh_(g[j] + x[j]);
}

// c = f * before + i * u, and h = o * tanh(c)
inline void update(const float* __restrict gates, const float* __restrict before, float* __restrict c,
                   float* __restrict h, int64_t H) {
    for (int64_t j = 0; j < H; ++j) {
        const float cell = gates[H + j] * before[j] + gates[j] * gates[3 * H + j];
        c[j] = cell;
        h[j] = gates[2 * H + j] * tanh_(cell);
    }
}

inline void update_from_zero(const float* __restrict gates, float* __restrict c, float* __restrict h, int64_t H) {
    for (int64_t j = 0; j < H; ++j) {
        const float cell = gates[j] * gates[3 * H + j];
        c[j] = cell;
        h[j] = gates[2 * H + j] * tanh_(cell);
    }
}

inline void multiply(const float* __restrict a, const float* __restrict b, float* __restrict out, int64_t n) {
    for (int64_t j = 0; j < n; ++j) out[j] = a[j] * b[j];
}

inline void add(float* __restrict to, const float* __restrict from, int64_t n) {
    for (int64_t j = 0; j < n; ++j) to[j] += from[j];
}

// Gradients of the gates before their nonlinearity from d_h and d_c; d_c becomes that of the cell before.
inline void update_backward(const float* __restrict gates, const float* __restrict before, const float* __restrict c,
                            const float* __restrict d_h, float* __restrict d_c, float* __restrict d_gates, int64_t H) {
    for (int64_t j = 0; j < H; ++j) {
        const float i = gates[j], f = gates[H + j], o = gates[2 * H + j], u = gates[3 * H + j];
        const float t = tanh_(c[j]);
        const float d = d_c[j] + d_h[j] * o * (1.0f - t * t);
        d_gates[j] = d * u * i * (1.0f - i);
        d_gates[H + j] = d * before[j] * f * (1.0f - f);
        d_gates[2 * H + j] = d_h[j] * t * o * (1.0f - o);
        d_gates[3 * H + j] = d * i * (1.0f - u * u);
        d_c[j] = d * f;
    }
}

// d_xm = d_m * z and d_z = d_m * x_m; d_z is the memory of d_m.
inline void multiply_backward(const float* __restrict x_m, const float* __restrict z, float* __restrict d_m,
                              float* __restrict d_xm, int64_t H) {
    for (int64_t j = 0; j < H; ++j) {
        const float d = d_m[j];
        d_xm[j] = d * z[j];
        d_m[j] = d * x_m[j];
    }
}

using Index = int;  // MKL's LP64 interface
using SgemmCompute = void (*)(int, int, int, Index, Index, Index, const float*, Index, const float*, Index, float, float*,
                              Index);
constexpr int kRowMajor = 101, kNoTrans = 111, kPacked = 151;

}  // namespace

extern "C" {

// Weights packed by cblas_sgemm_pack as the right-hand matrix of a product with B rows, and the function that uses them.
struct Gemm {
    SgemmCompute compute;
    const float* wmh;  // forward: wmh^T (H, H); backward: wmh (H, H)
    const float* wh;   // forward: wh^T (H, 4H); backward: wh (4H, H)
};

// Runs T steps. `x` is (T, B, 5H), or with `tokens` (T, B) a table (V, 5H). hidden and cell are (T + 1, B, H) and their
// first entry is the initial state, zeroed here where the first step resets; gates is (T, B, 4H), z (T, B, H), m (B, H) is
// scratch. Where nothing is kept for backward, gates and z have one entry (`kept` 0); then cell may have one too (`cells` 0).
void mlstm_forward(const Gemm* gemm, const float* x, const int64_t* tokens, const uint8_t* reset, float* hidden,
                   float* cell, float* gates, float* z, float* m, int64_t T, int64_t B, int64_t H, int kept, int cells,
                   int threads) {
    const int64_t BH = B * H;
    for (int64_t t = 0; t < T; ++t) {
        float* h = hidden + t * BH;
        float* c = cell + (cells ? t * BH : 0);
        float* c_next = cells ? c + BH : c;
        float* g = gates + (kept ? t * 4 * BH : 0);
        float* z_t = z + (kept ? t * BH : 0);
        const int64_t* token = tokens ? tokens + t * B : nullptr;
        const float* x_t = tokens ? x : x + t * 5 * BH;
        const uint8_t* zero = reset ? reset + t * B : nullptr;
        if (zero && t == 0)
            for (int64_t b = 0; b < B; ++b)
                if (zero[b]) {
                    std::memset(h + b * H, 0, H * sizeof(float));
                    std::memset(c + b * H, 0, H * sizeof(float));
                }
        gemm->compute(kRowMajor, kNoTrans, kPacked, B, H, H, h, H, gemm->wmh, H, 0.0f, z_t, H);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t b = 0; b < B; ++b) {
            if (zero && zero[b]) std::memset(z_t + b * H, 0, H * sizeof(float));
            multiply(z_t + b * H, x_t + (token ? token[b] : b) * 5 * H + 4 * H, m + b * H, H);
        }
        gemm->compute(kRowMajor, kNoTrans, kPacked, B, 4 * H, H, m, H, gemm->wh, 4 * H, 0.0f, g, 4 * H);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t b = 0; b < B; ++b) {
            const float* x_b = x_t + (token ? token[b] : b) * 5 * H;
            float* g_b = g + b * 4 * H;
            add_sigmoid(g_b, x_b, 3 * H);
            add_tanh(g_b + 3 * H, x_b + 3 * H, H);
            if (zero && zero[b]) {  // a closed forget gate also cuts the gradient
                std::memset(g_b + H, 0, H * sizeof(float));
                update_from_zero(g_b, c_next + b * H, h + BH + b * H, H);
            } else if (cells) {
                update(g_b, c + b * H, c_next + b * H, h + BH + b * H, H);
            } else {
                float* c_b = c + b * H;  // in place
                float* h_b = h + BH + b * H;
                for (int64_t j = 0; j < H; ++j) {
                    const float next = g_b[H + j] * c_b[j] + g_b[j] * g_b[3 * H + j];
                    c_b[j] = next;
                    h_b[j] = g_b[2 * H + j] * tanh_(next);
                }
            }
        }
    }
}

// Walks T steps backwards. dh and dc (B, H) come as the gradients of the state after them and leave as those of the state
// before them. d_gates (T, B, 4H), d_xm and d_z (T, B, H) are filled for the gradients of inputs and weights; grad_h and
// grad_c (T, B, H) are added where they are not null.
void mlstm_backward(const Gemm* gemm, const float* x, const int64_t* tokens, const uint8_t* reset, const float* cell,
                    const float* gates, const float* z, const float* grad_h, const float* grad_c, float* dh, float* dc,
                    float* d_gates, float* d_xm, float* d_z, int64_t T, int64_t B, int64_t H, int threads) {
    const int64_t BH = B * H;
    for (int64_t t = T - 1; t >= 0; --t) {
        const float* g = gates + t * 4 * BH;
        const float* c = cell + t * BH;
        float* dg = d_gates + t * 4 * BH;
        float* dm = d_z + t * BH;
        const int64_t* token = tokens ? tokens + t * B : nullptr;
        const float* x_t = tokens ? x : x + t * 5 * BH;
        const uint8_t* zero = reset ? reset + t * B : nullptr;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t b = 0; b < B; ++b) {
            if (grad_h) add(dh + b * H, grad_h + t * BH + b * H, H);
            if (grad_c) add(dc + b * H, grad_c + t * BH + b * H, H);
            update_backward(g + b * 4 * H, c + b * H, c + BH + b * H, dh + b * H, dc + b * H, dg + b * 4 * H, H);
            if (zero && zero[b]) {  // the cell before may hold anything, even a NaN
                std::memset(dg + b * 4 * H + H, 0, H * sizeof(float));
                std::memset(dc + b * H, 0, H * sizeof(float));
            }
        }
        gemm->compute(kRowMajor, kNoTrans, kPacked, B, H, 4 * H, dg, 4 * H, gemm->wh, H, 0.0f, dm, H);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t b = 0; b < B; ++b) {
            multiply_backward(x_t + (token ? token[b] : b) * 5 * H + 4 * H, z + t * BH + b * H, dm + b * H,
                              d_xm + t * BH + b * H, H);
            if (zero && zero[b]) std::memset(dm + b * H, 0, H * sizeof(float));
        }
        gemm->compute(kRowMajor, kNoTrans, kPacked, B, H, H, dm, H, gemm->wmh, H, 0.0f, dh, H);
    }
}

// Adds N rows of gradients to the rows of a table: d_table[tokens[n], first : first + W] += d[n]. Each thread owns some
// columns, so that nothing is added twice at once and the order of additions is that of n.
void mlstm_table_backward(const float* d, const int64_t* tokens, float* d_table, int64_t N, int64_t W, int64_t first,
                          int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; ++part) {
        const int64_t low = W * part / threads, high = W * (part + 1) / threads;
        for (int64_t n = 0; n < N; ++n) {
            float* __restrict row = d_table + tokens[n] * width + first;
            const float* __restrict from = d + n * W;
            for (int64_t j = low; j < high; ++j) row[j] += from[j];
        }
    }
}

}  // extern "C"
