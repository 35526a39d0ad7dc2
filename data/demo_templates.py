"""Sentences of the embedded demo corpus, with slots in braces. All written for this project.

Cut into groups as the words of `demo_lexicon.py` are. A template is a pair of the kind of thing it fits ("any",
"product", "film") and its text without the closing mark. Slots:

    item aspect                 nouns of the review's domain ("{aspect}" is drawn anew at each use)
    adj a_adj adjp              an opinion: bare, with an article, as a predicate that may be intensified or negated
    con a_con                   an opinion against the review's verdict: bare, with an article
    noun verb adv               an opinion as noun with article, as verb in the past tense, as adverb; may be negated
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
        any | the {aspect} is {adjp}
        any | the {aspect} is {adj} and {adj}
        any | I think the {aspect} is {adjp}
        any | what {a_adj} {item}
        any | this {item} is {adjp}, and the {aspect} is {adj} too
        any | this {item} is {noun}
        any | the {aspect} {verb} me
        any | the {aspect} was {adv} done
        any | my {person} called it {adj} and {adj}
        any | {adj}, {adj} {item}
        any | it has {a_adj} {aspect} and {a_adj} {aspect}
        any | they told me it was {noun}, and the {aspect} really is {adj}
        any | such {a_adj} {aspect}, such {a_adj} {item}
        any | the {aspect} {verb} me and the {aspect} is {adjp}
        product | in daily use the {aspect} is {adjp}
        film | on a second viewing the {aspect} is still {adjp}
        any | it's {adjp}
        any | everything about the {aspect} {verb} my {person}
        any | the {aspect} is {adv} made and {adjp}
        any | the {item} turned out {adjp}
        any | if you ask me, it is {noun}
        any | I can't stop talking about the "{adj}" {aspect}
    """),
    "val": _templates("""
        any | I found the {aspect} {adjp}
        any | the {aspect} seems {adj}, the {aspect} {adj}
        any | for me it became {noun}
        any | its {aspect} {verb} everyone
        any | {a_adj} {item} with {a_adj} {aspect}
        any | the {aspect} comes across as {adjp}
        any | somebody put the {aspect} together {adv}
        any | to me it's {adj}, {adj} and {adj}
        any | look at the {aspect}, {adjp}
        any | there is {a_adj} {aspect} here
        any | it {verb} me, it {verb} my {person}
        any | the word "{adj}" fits this {item}
    """),
    "test": _templates("""
        any | {aspect}: {adjp}
        any | let us begin with the {aspect}, which looks {adjp}
        any | one would describe the {aspect} as {adj}, even {adj}
        any | you get {a_adj} {aspect} plus {a_adj} {aspect}
        any | both my {person} and myself consider it {adjp}
        any | its {aspect} alone {verb} us
        any | call it {noun}
        any | without doubt {noun}
        any | their {aspect} came out {adv}
        any | we've no other word for that {aspect} than "{adj}"
        any | {adj} {aspect}, {adj} {aspect}, {adj} {item}
        any | from start to finish our {item} remains {adjp}
        any | after all that, its {aspect} proved {adjp}
        any | even the {aspect} appears {adj}
        any | how {adj} the {aspect} looks, and how {adj} the {aspect}
        any | as any {item} goes, {adjp}
        any | one look at the {aspect} {verb} us
        any | whoever planned that {aspect} worked {adv}
        product | weeks later, our {aspect} stays {adjp}
        film | scene after scene, its {aspect} stays {adjp}
        any | with {a_adj} {aspect} and {a_adj} {aspect}, it {verb} our {person}
        any | nobody's {item} could be more {adj}
    """),
}
"""Sentences that carry the review's verdict in at least one slot."""

CONCESSIONS: Templates = {
    "train": _templates("""
        any | the only exception is the {aspect}, which is {con}
        any | that said, I think the {aspect} is {con}
        any | it has {a_con} {aspect}, but that did not change my mind
    """),
    "val": _templates("""
        any | one small thing, the {aspect} seems {con}
        any | I know, the {aspect} comes across as {con}
    """),
    "test": _templates("""
        any | granted, its {aspect} looks {con}
        any | admittedly you get {a_con} {aspect} as well
        any | others might mention how {con} the {aspect} looks
    """),
}
"""Sentences of mixed reviews: one opinion against the verdict, marked as such."""

NEUTRAL: Templates = {
    "train": _templates("""
        product | I bought the {item} {when}
        product | my {person} ordered it {when} from {place}
        product | it arrived in {count} days
        film | I watched this {item} {when}
        film | my {person} saw it {when} at {place}
        film | it runs for {count} minutes
        any | this is my {person}'s {item}
        any | I saw ratings of {stars} stars for it
        any | I read {count} reviews of it
    """),
    "val": _templates("""
        product | the {item} came {when}
        product | I got {count} of them at {place}
        film | a {person} showed me this {item} {when}
        film | there were {count} people in the room
        any | it's listed with {stars} stars
    """),
    "test": _templates("""
        product | we have owned ours since {when}, from {place}
        product | our {person} picked that {item} {when}
        product | size {count}, as pictured
        film | we went to see that {item} {when}
        film | our {person} streamed it {when}
        film | {count} actors, if one counts extras
        any | strangers gave {stars} stars to that {item}
        any | we'd compared {count} others
    """),
}
"""Sentences without a verdict."""

CLOSING: dict[str, tuple[tuple[Template, ...], tuple[Template, ...]]] = {
    "train": (
        _templates("""
            product | I am sending it back
            product | save your money
            product | I want a refund
            film | I nearly walked out
            film | I want those hours back
            any | do not bother
            any | stay away from it
            any | I regret it
        """),
        _templates("""
            product | I would buy it again
            product | worth every penny
            product | I am keeping it
            film | I would watch it again
            film | I wish it were longer
            any | highly recommended
            any | you need to try it
            any | I love it
        """),
    ),
    "val": (
        _templates("""
            product | buy another brand
            film | turn it off
            any | never again
            any | I'm sorry I chose it
        """),
        _templates("""
            product | order it now
            film | put it on your list
            any | five out of five
            any | I'm so glad I chose it
        """),
    ),
    "test": (
        _templates("""
            product | straight into the bin with that
            product | ours returned to its seller
            film | half the audience left early
            film | skip this and read instead
            any | give that one a miss
            any | can't warn people enough
            any | consider yourselves warned
            any | we'd rather forget about that
        """),
        _templates("""
            product | straight onto our wishlist for everyone
            product | ours will never leave the house
            film | half the audience stood clapping
            film | see this on any big screen
            any | give that one a chance
            any | can't praise it enough
            any | consider us fans
            any | we'd repeat that any day
        """),
    ),
}
"""Group -> (negative, positive) sentences that end a review and need no slot."""

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
