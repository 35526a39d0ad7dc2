"""The fitted numbers of the scaling model, as `backtest.refit` finds them; a test fits them again."""

from __future__ import annotations

from .scaling import Parameters

# half_size, intra_efficiency, inter_efficiency, straggler, overlap
FITTED = Parameters(1.322, 1.0, 0.6245, 0.004246, 1.0)

# The same with one table left out: how far predictions depend on what was fitted.
LEFT_OUT = {
    "nv1808_gpu_scaling": Parameters(1.326, 1.0, 1.0, 0.003834, 1.0),
    "nv_train_time_8gpu": Parameters(1.138, 1.0, 0.6286, 0.004778, 1.0),
    "megatron_heads_and_strong_scaling": Parameters(1.355, 1.0, 0.6325, 0.003351, 0.5189),
    "megatron_weak_scaling": Parameters(1.458, 1.0, 0.6271, 0.004723, 1.0),
    "bert_throughput_scaling": Parameters(1.317, 1.0, 0.6303, 0.004929, 1.0),
    "bert_time_vs_gpus": Parameters(1.35, 1.0, 0.6015, 0.0004313, 1.0),
    "mtnlg_throughput": Parameters(1.296, 1.0, 0.6356, 0.007323, 1.0),
}

# The same without all tables of one line of work, whose tables share devices and code: the harder question.
LEFT_OUT_FAMILY = {
    "nv": Parameters(1.129, 1.0, 1.0, 0.003968, 0.9068),
    "megatron": Parameters(4.106, 0.7467, 0.5814, 0.00237, 0.0),
    "bert": Parameters(1.35, 1.0, 0.6023, 0.0004752, 1.0),
}
