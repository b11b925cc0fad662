"""Small tokenizers of the kinds that models have, trained on a page, with chat templates."""

import json
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

PAGE = [
    "The quick brown fox jumps over the lazy dog.\nuser assistant system\n\n",
    "It's 12:45 <b>and</b> [a, b] the end; the model | INST start_header_id im_start im_end.",
    "user\nassistant\nsystem\n  hello hello  world world ünïcödé naïve 日本語 😀😀",
] * 4


@dataclass(frozen=True)
class Kind:
    library: Tokenizer
    template: str
    variables: dict[str, str]


def llama3() -> Kind:
    """Byte level, a BOS by the post-processor, markers around roles."""
    library = Tokenizer(models.BPE())
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    names = ["begin_of_text", "start_header_id", "end_header_id", "eot_id"]
    specials = [f"<|{name}|>" for name in names]
    _train(library, [], pre_tokenizers.ByteLevel.alphabet())
    library.add_special_tokens([AddedToken(text, special=True) for text in specials])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    bos = library.token_to_id(specials[0])
    library.post_processor = processors.TemplateProcessing(
        single=[specials[0], "$A"], special_tokens=[(specials[0], bos)]
    )
    template = (
        "{{- bos_token }}{% for m in messages %}"
        "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
        " + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{% endif %}"
    )
    return Kind(library, template, {"bos_token": specials[0], "eos_token": specials[3]})


def llama2() -> Kind:
    """SentencePiece with a space before every piece; special tokens inside the vocabulary."""
    library = _sentence_piece(["<unk>", "<s>", "</s>"])
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    template = (
        "{% for m in messages %}"
        "{% if m['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}"
        "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant speak') }}{% endif %}{% endfor %}"
    )
    return Kind(library, template, {"bos_token": "<s>", "eos_token": "</s>"})


def mistral() -> Kind:
    """SentencePiece with a space before the first piece only; markers are special tokens."""
    library = _sentence_piece(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    template = (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
        "{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}{% endfor %}"
    )
    return Kind(library, template, {"bos_token": "<s>", "eos_token": "</s>"})


def phi3() -> Kind:
    """Special tokens that swallow the white space behind them; one made from the role."""
    library = _sentence_piece(["<unk>", "<s>", "</s>"])
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    names = ["system", "user", "assistant", "end"]
    library.add_special_tokens(
        [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in names]
    )
    template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}"
        "{% endfor %}{{ '<|assistant|>\n' }}"
    )
    return Kind(library, template, {"bos_token": "<s>", "eos_token": "</s>"})


KINDS = {"llama3": llama3, "llama2": llama2, "mistral": mistral, "phi3": phi3}


def _sentence_piece(specials: list[str]) -> Tokenizer:
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    _train(library, specials + bytes_, [])
    library = _forget(library, bytes_)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return library


def _forget(library: Tokenizer, texts: list[str]) -> Tokenizer:
    """Bytes are tokens of the vocabulary, none that are found in a text."""
    state = json.loads(library.to_str())
    state["added_tokens"] = [
        token for token in state["added_tokens"] if token["content"] not in texts
    ]
    return Tokenizer.from_str(json.dumps(state))


def _train(library: Tokenizer, specials: list[str], alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(PAGE, trainer)
