"""Words of the embedded demo corpus: opinions, nouns, fillers. All written for this project.

Every list is cut into three groups, named after the labelled split that owns them. The labelled train split uses
the `train` group alone; `val` and `test` bring nouns of their own and mix the `train` opinions with their own; the
unlabelled text uses all three. So a test review is about things, and partly in words, that no label ever
described. The sentences these words stand in are in `demo_templates.py`, the grammar in `demo_reviews.py`.

Rules kept by the tests: a word is one lower-case token, stands in one list and one group only, and no opinion word
or noun of one group is used in the sentences of another.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = ("train", "val", "test")
POSITIVE, NEGATIVE = 1, 0

Words = tuple[str, ...]
ByGroup = dict[str, Words]
Opinions = dict[str, tuple[Words, Words]]
"""Group -> (negative words, positive words), so that a label is an index."""


def _by_group(train: str, val: str, test: str) -> ByGroup:
    return {"train": tuple(train.split()), "val": tuple(val.split()), "test": tuple(test.split())}


def _opinions(negative: ByGroup, positive: ByGroup) -> Opinions:
    return {group: (negative[group], positive[group]) for group in GROUPS}


ADJECTIVES = _opinions(
    negative=_by_group(
        train="dull boring awful clumsy shoddy ugly dreadful annoying horrible terrible atrocious revolting",
        val="bland poor inept flimsy repulsive miserable",
        test="""vile hideous faulty useless painful pathetic tasteless insulting worthless disgraceful ridiculous
        frustrating""",
    ),
    positive=_by_group(
        train="good lovely solid clever superb nice pleasant charming splendid gorgeous excellent fantastic",
        val="great neat ideal lively brilliant wonderful",
        test="""fine perfect smooth magical stylish stunning sparkling masterful exquisite captivating enchanting
        sensational""",
    ),
)

NOUNS = _opinions(
    negative=_by_group(
        train="dud lemon failure fiasco", val="bummer mistake", test="horror swindle letdown catastrophe"
    ),
    positive=_by_group(
        train="gem treat triumph winner", val="marvel success", test="beauty godsend miracle masterpiece"
    ),
)
"""What a thing is called: "a gem", "hardly a dud"."""

VERBS = _opinions(
    negative=_by_group(
        train="annoyed enraged angered irritated", val="galled offended", test="bored saddened frustrated infuriated"
    ),
    positive=_by_group(
        train="pleased charmed cheered impressed", val="amazed thrilled", test="moved uplifted captivated enthralled"
    ),
)
"""What a thing did to somebody: "the plot bored us"."""

ADVERBS = _opinions(
    negative=_by_group(
        train="horribly miserably carelessly dreadfully",
        val="pitifully hopelessly",
        test="feebly shamefully senselessly appallingly",
    ),
    positive=_by_group(
        train="superbly elegantly flawlessly splendidly",
        val="perfectly brilliantly",
        test="finely gracefully masterfully exquisitely",
    ),
)
"""How a thing is what it is: "horribly dull"."""

COMMENTS = _opinions(
    negative=_by_group(train="sadly regrettably", val="yikes", test="ugh annoyingly"),
    positive=_by_group(train="gladly thankfully", val="bravo", test="yes fortunately"),
)
"""Words that comment on a whole sentence from its front."""

STANCES = _opinions(
    negative=_by_group(train="regret", val="dislike", test="hate abhor"),
    positive=_by_group(train="admire", val="cherish", test="love adore"),
)
"""What the author does with it: "we love ours"."""

OPINION_CLASSES = (ADJECTIVES, NOUNS, VERBS, ADVERBS, COMMENTS, STANCES)

INTENSIFIERS = ("very", "really", "so", "truly", "simply", "absolutely", "extremely", "rather", "totally", "quite")
"""Shared by all groups and both polarities: they carry no label."""


@dataclass(frozen=True)
class Domain:
    """A kind of thing people review.

    Attributes:
        kind: "product" or "film"; sentences may ask for one of them.
        items: names of the thing itself, by group.
        aspects: parts and qualities of it that take a singular verb, by group.
    """

    kind: str
    items: ByGroup
    aspects: ByGroup


def _domain(kind: str, items: tuple[str, str, str], aspects: tuple[str, str, str]) -> Domain:
    return Domain(kind, _by_group(*items), _by_group(*aspects))


_FILM_ASPECTS = ("plot cast", "score", "script finale")

DOMAINS = (
    _domain("product", ("kettle toaster", "mixer", "juicer blender"), ("lid cord", "dial", "jug knob")),
    _domain("product", ("radio headset", "speaker", "earpiece soundbar"), ("plug bass", "jack", "tone mic")),
    _domain("product", ("jacket sweater", "coat", "vest cardigan"), ("zip hem", "cuff", "seam hood")),
    _domain("product", ("drill hammer", "sander", "wrench chisel"), ("grip bit", "chuck", "blade shaft")),
    _domain("product", ("phone laptop", "tablet", "camera printer"), ("case screen", "lens", "port keypad")),
    _domain("product", ("purse backpack", "tote", "satchel suitcase"), ("strap clip", "clasp", "latch flap")),
    _domain("product", ("sofa desk", "stool", "wardrobe bunk"), ("frame seat", "veneer", "drawer hinge")),
    _domain("product", ("perfume soap", "lotion", "shampoo lipstick"), ("scent bottle", "shade", "aroma foam")),
    _domain("product", ("puzzle doll", "kite", "robot scooter"), ("wheel box", "string", "rulebook bell")),
    _domain("film", ("thriller mystery", "whodunit", "western heist"), _FILM_ASPECTS),
    _domain("film", ("comedy musical", "satire", "sitcom farce"), _FILM_ASPECTS),
    _domain("film", ("drama romance", "biopic", "epic tragedy"), _FILM_ASPECTS),
)

PEOPLE = _by_group(
    "sister neighbour husband",
    "cousin uncle",
    "brother colleague wife",
)

TIMES: ByGroup = {
    "train": ("last week", "in March", "on Monday"),
    "val": ("in June", "on Sunday"),
    "test": ("yesterday", "in October", "one Friday"),
}

PLACES: ByGroup = {
    "train": ("the mall", "a local shop", "an outlet downtown"),
    "val": ("the fair", "a club"),
    "test": ("the village", "some website", "a market abroad"),
}
