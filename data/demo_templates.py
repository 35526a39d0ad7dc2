"""Sentences of the embedded demo corpus, with slots in braces. All written for this project.

Cut into groups as the words of `demo_lexicon.py` are. A template is a pair of the kind of thing it fits ("any",
"product", "film") and its text without the closing mark. Slots:

    item aspect                 nouns of the review's domain ("{aspect}" is drawn anew at each use)
    adj a_adj adjp              an opinion: bare, with an article, as a predicate that may be intensified or negated
    con a_con                   an opinion against the review's verdict: bare, with an article
    noun verb adv stance        an opinion as noun with article, as verb in the past tense, as adverb, as verb of the author
    person when place           neutral fillers
    count stars                 a number of things, other people's rating: both independent of the verdict
"""

from __future__ import annotations

Template = tuple[str, str]
Templates = dict[str, tuple[Template, ...]]


def _templates(text: str) -> tuple[Template, ...]:
    """One template a line, `kind | text`."""
    pairs = (line.split("|", 1) for line in text.strip().splitlines())
    return tuple((kind.strip(), body.strip()) for kind, body in pairs)


POLAR: Templates = {
    "train": _templates("""
        any | {adj} {aspect}, {adv} {adj}
        any | {adj}, {adj} {item}
        any | the {aspect} is {adjp}
        any | {adv} {adj} and {adj}
        any | {adj} {item}, {noun}
        any | I {stance} it, it's {adjp}
        any | the {adj} {aspect} {verb} me
        any | my {person} says {adjp}
        any | what {a_adj} {adj} {item}
        any | I call the {aspect} "{adj}"
    """),
    "val": _templates("""
        any | so {adj}, so {adj}
        any | {adj}, {adj}, {adj}
        any | I found it {adjp}
        any | to me {noun}
        any | {adj} {item}, it {verb} me
        any | I {stance} this {adj} {aspect}
    """),
    "test": _templates("""
        any | {adj} {adj} {aspect}
        any | {aspect}: {adv} {adj}
        any | how {adj}, how {adj}
        any | both {adj} and {adj}
        any | we {stance} ours, {adjp}
        any | even its {aspect} looks {adj}
        any | its {adj} {aspect} {verb} us
        any | call it {noun}
        any | {adv} {adj}, said our {person}
        any | one "{adj}" {item}, {adj} {aspect}
    """),
}
"""Sentences that carry the review's verdict in at least one slot."""

CONCESSIONS: Templates = {
    "train": _templates("""
        any | that said, the {aspect} is {con}
        any | only the {aspect} is {con}
    """),
    "val": _templates("""
        any | I know, the {aspect} seems {con}
    """),
    "test": _templates("""
        any | granted, its {aspect} looks {con}
        any | still, we got {a_con} {aspect}
    """),
}
"""Sentences of mixed reviews: one opinion against the verdict, marked as such."""

NEUTRAL: Templates = {
    "train": _templates("""
        product | I bought the {item} {when}
        product | it arrived in {count} days
        film | I watched this {item} {when}
        film | it runs for {count} minutes
        any | I saw ratings of {stars} stars
        any | my {person} got it at {place}
    """),
    "val": _templates("""
        any | my {person} has {count} of them
        any | it's listed with {stars} stars
    """),
    "test": _templates("""
        product | ours came {when}
        product | size {count}, as pictured
        film | we went {when}
        film | {count} actors, if one counts extras
        any | strangers gave {stars} stars
        any | our {person} found one at {place}
    """),
}
"""Sentences without a verdict."""

VERDICTS: dict[str, tuple[tuple[Template, ...], tuple[Template, ...]]] = {
    "train": (
        _templates("""
            any | I want my money back
            any | please do not bother
            any | I am so angry
        """),
        _templates("""
            any | I bought another one
            any | highly recommended
            any | I am so happy
        """),
    ),
    "val": (
        _templates("""
            any | hands off
            any | a real pain
        """),
        _templates("""
            any | hats off
            any | a real find
        """),
    ),
    "test": (
        _templates("""
            any | two thumbs down
            any | can't blame it enough
            any | everybody groaned
        """),
        _templates("""
            any | two thumbs up
            any | can't praise it enough
            any | everybody clapped
        """),
    ),
}
"""Group -> (negative, positive) sentences that say it without a slot."""

TAILS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("that spoilt my day", "as I had feared"), ("that made my day", "as I had hoped")),
    "val": (("to my sorrow",), ("to my relief",)),
    "test": (("heaven help us all", "worse than others"), ("heaven be praised", "better than others")),
}
"""Group -> (negative, positive) ends of a sentence that say what follows from the opinion in it."""

NEGATED_ADJECTIVES: dict[str, tuple[str, ...]] = {
    "train": ("not {} at all", "never {}", "hardly {}"),
    "val": ("far from {}", "in no way {}"),
    "test": ("by no means {}", "anything but {}", "not the least bit {}"),
}

NEGATED_NOUNS: dict[str, tuple[str, ...]] = {
    "train": ("hardly {}", "not {}"),
    "val": ("far from {}",),
    "test": ("anything but {}", "by no means {}"),
}

NEGATED_VERBS: dict[str, tuple[str, ...]] = {
    "train": ("never {}", "hardly {}"),
    "val": ("in no way {}",),
    "test": ("by no means {}", "at no point {}"),
}
"""Negation turns a word of the other polarity into an opinion of this one."""
