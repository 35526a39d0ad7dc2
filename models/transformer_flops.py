"""Parameters, work and memory of a GPT or BERT in closed form, from its configuration alone.

The rule for work: a multiplication and an addition are two FLOPs; only matrix products count, attention in full although
a causal one needs half of it, the output layer with its padded vocabulary; the backward pass costs twice the forward
pass. Norms, softmax, GELU, embeddings, loss and optimizer count zero. Model FLOPs leave recomputation out, as utilisation
is usually given; `recomputed_flops` is what it adds.
"""

from __future__ import annotations

from .transformer_config import BERTConfig, GPTConfig, TransformerConfig


def parameters(config: TransformerConfig) -> int:
    """Number of trainable parameters, a tied output layer counted once, the padded rows of the vocabulary included."""
    hidden, inner = config.hidden_size, config.mlp_size
    # A layer: qkv, output, up, down with their biases, and two norms.
    layer = 3 * hidden * (hidden + 1) + hidden * (hidden + 1) + inner * (hidden + 1) + hidden * (inner + 1) + 4 * hidden
    embeddings = (config.padded_vocab_size + config.max_position_embeddings) * hidden
    norm = 2 * hidden  # the last one, or that of the embeddings in the post-norm BERT
    total = config.num_layers * layer + embeddings + norm
    return total if isinstance(config, GPTConfig) else total + config.type_vocab_size * hidden + _head(config)


def forward_flops(config: TransformerConfig, seq_length: int, predictions: int | None = None) -> int:
    """FLOPs of the forward pass of one sequence.

    Args:
        config: the model.
        seq_length: tokens T of the sequence.
        predictions: places at which words are predicted; all T if None. Without effect on BERT's other heads.

    Returns:
        2 T L (4 H^2 + 2 H F) for the products with weights, 4 T^2 H L for attention, and the output layers.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), appendix, which counts a recomputed forward pass on top.
    """
    hidden, layers = config.hidden_size, config.num_layers
    products = 2 * seq_length * layers * (4 * hidden**2 + 2 * hidden * config.mlp_size)
    places = seq_length if predictions is None else predictions
    attention = _attention_flops(config, seq_length)
    if isinstance(config, GPTConfig):
        return products + attention + 2 * places * hidden * config.padded_vocab_size
    pooler = 2 * hidden**2 if config.has_pooler else 0
    if config.head == "pretraining":
        sentence = 2 * hidden * 2 if config.sentence_head != "none" else 0
        head = 2 * places * hidden * (hidden + config.padded_vocab_size) + sentence
    elif config.head == "question_answering":
        head = 2 * seq_length * hidden * 2
    else:
        head = 2 * hidden * _pooled_outputs(config)
    return products + attention + pooler + head


def training_flops(config: TransformerConfig, seq_length: int, predictions: int | None = None) -> int:
    """FLOPs of training on one sequence: three forward passes; arguments as in `forward_flops`."""
    return 3 * forward_flops(config, seq_length, predictions)


def recomputed_flops(config: TransformerConfig, seq_length: int) -> int:
    """FLOPs that `config.recompute` adds to the backward pass of one sequence, at most.

    Recomputation stops where nothing more is needed, so plain attention and MLP are spared their last product.
    """
    attention = _attention_flops(config, seq_length)
    hidden = config.hidden_size
    layers = 2 * seq_length * config.num_layers * (4 * hidden**2 + 2 * hidden * config.mlp_size)
    return {"none": 0, "selective": attention, "full": layers + attention}[config.recompute]


def training_bytes(config: TransformerConfig, precision: str, moments: int = 2, shards: int = 1) -> dict[str, int]:
    """Bytes that a rank holds between two steps, in closed form.

    Args:
        config: the model.
        precision: fp32, fp16, bf16 or amp.
        moments: fp32 tensors of a parameter's size that the optimizer keeps: 2 for Adam and LAMB, 1 for momentum.
        shards: ranks over which FSDP2 spreads parameters, gradients and optimizer state.

    Returns:
        weights (the fp32 masters), gradients, optimizer; and `copies`, the half-precision weights of a pass, which live
        no longer than it.
    """
    size = 4 * parameters(config) // shards
    copies = 0 if precision == "fp32" else 2 * parameters(config)
    return {"weights": size, "gradients": size, "optimizer": moments * size, "copies": copies}


def activation_bytes(config: TransformerConfig, batch_size: int, seq_length: int, precision: str) -> dict[str, int]:
    """Bytes that a micro-batch keeps between its forward and its backward pass, in closed form.

    A layer keeps for each token, in the compute type: the inputs of both norms and what they give (4 H), q, k and v (3 H),
    the attended values (H), the MLP before and after GELU (2 F); in fp32 mean and deviation of both norms, and the
    normaliser of each head's softmax, which selective recomputation drops; one byte for each number that dropout may have
    zeroed. With full recomputation it keeps its input alone, and one layer at a time is whole again.

    The rule holds for attention that never stores its weights: what PyTorch chooses on a GPU in half precision, and on a
    CPU without attention dropout.

    Args:
        config: the model; GPT, or BERT with the heads of pretraining.
        batch_size: sequences B.
        seq_length: tokens T of each.
        precision: fp32, fp16, bf16 or amp.

    Returns:
        layers: of all layers; embedding: token ids, norm and dropout; output: from the last layer to the log-probabilities
        (fp32) that the loss keeps; recomputed: the one layer that is whole during the backward pass.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4, less the weights of attention.
    """
    size, hidden, rows = 4 if precision == "fp32" else 2, config.hidden_size, batch_size * seq_length
    selective = config.recompute == "selective"
    whole = size * (8 * hidden + 2 * config.mlp_size) + 16 + (0 if selective else 4 * config.num_attention_heads)
    whole += 2 * hidden if config.dropout else 0
    full = config.recompute == "full"
    embedding = 16 + (hidden if config.dropout else 0)
    output = size * 2 * hidden + 8 + 4 * config.padded_vocab_size
    if isinstance(config, BERTConfig):
        embedding += 8 + (size * hidden + 8 if config.layer_norm == "post" else 0)
        # Transform: its input, before and after GELU, after its norm. The last layer's output is its input.
        output = size * 4 * hidden + 8 + 4 * config.padded_vocab_size
        output += size * hidden + 8 if config.layer_norm == "pre" else 0
    return {
        "layers": rows * config.num_layers * (size * hidden if full else whole),
        "embedding": rows * embedding,
        "output": rows * output,
        "recomputed": rows * whole if full else 0,
    }


def _attention_flops(config: TransformerConfig, seq_length: int) -> int:
    return 4 * seq_length**2 * config.hidden_size * config.num_layers


def _pooled_outputs(config: BERTConfig) -> int:
    return {"encoder": 0, "classification": config.num_labels, "multiple_choice": 1}[config.head]


def _head(config: BERTConfig) -> int:
    hidden = config.hidden_size
    pooler = hidden * (hidden + 1) if config.has_pooler else 0
    if config.head == "pretraining":
        words = hidden * (hidden + 1) + 2 * hidden + config.padded_vocab_size
        return pooler + words + (2 * (hidden + 1) if config.sentence_head != "none" else 0)
    outputs = 2 if config.head == "question_answering" else _pooled_outputs(config)
    return pooler + outputs * (hidden + 1)
