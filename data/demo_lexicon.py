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
        train="""awful terrible shoddy flimsy dull clumsy annoying disappointing mediocre sloppy dreadful ugly
        tedious unpleasant careless defective tiresome pathetic crude frustrating lousy bland irritating miserable
        horrible stingy stupid tacky abysmal dismal""",
        val="""bad poor weak hideous atrocious unbearable dreary feeble ghastly useless inferior messy shabby
        boring appalling""",
        test="""inadequate disgraceful rotten grim insulting laughable lamentable nasty pitiful ridiculous
        sickening stale tasteless tawdry unacceptable unbalanced uninspired vile wretched woeful
        hopeless repulsive lacklustre amateurish obnoxious depressing infuriating lifeless worthless faulty""",
    ),
    positive=_by_group(
        train="""excellent lovely solid charming clever delightful impressive superb pleasant polished fantastic
        gorgeous terrific thoughtful refreshing dependable admirable amazing satisfying graceful fabulous
        enjoyable marvelous splendid spotless generous smart elegant stellar glorious""",
        val="""great wonderful brilliant rich adorable magnificent outstanding remarkable classy radiant ideal
        joyful beautiful sublime robust""",
        test="""perfect exquisite stunning dazzling captivating exceptional gratifying immaculate masterful
        phenomenal wondrous smooth sparkling superior striking enchanting heavenly ingenious incredible inventive
        luminous luxurious magical rewarding seamless sensational spectacular stylish tremendous uplifting""",
    ),
)

NOUNS = _opinions(
    negative=_by_group(
        train="letdown disaster dud mess failure disappointment nightmare ripoff lemon blunder",
        val="flop mistake wreck bore joke",
        test="fiasco disgrace catastrophe insult travesty nuisance embarrassment eyesore swindle debacle",
    ),
    positive=_by_group(
        train="gem triumph treat bargain winner masterpiece treasure blessing keeper marvel",
        val="delight success jewel wonder hit",
        test="sensation revelation pleasure joy beauty godsend knockout showpiece standout victory",
    ),
)
"""What a thing is called: "a gem", "hardly a letdown"."""

VERBS = _opinions(
    negative=_by_group(
        train="annoyed bored frustrated irritated disgusted infuriated",
        val="disappointed angered depressed",
        test="appalled exasperated offended saddened tormented wearied",
    ),
    positive=_by_group(
        train="impressed delighted charmed thrilled pleased cheered",
        val="amazed dazzled enchanted",
        test="captivated enthralled gladdened uplifted rewarded mesmerised",
    ),
)
"""What a thing did to somebody: "the plot bored me"."""

ADVERBS = _opinions(
    negative=_by_group(
        train="badly terribly carelessly clumsily sloppily horribly",
        val="poorly miserably feebly",
        test="woefully atrociously hopelessly pitifully wretchedly shamefully",
    ),
    positive=_by_group(
        train="beautifully flawlessly superbly elegantly splendidly cleverly",
        val="brilliantly wonderfully perfectly",
        test="exquisitely masterfully gracefully magnificently impeccably seamlessly",
    ),
)
"""How a thing was made: "cleverly done"."""

COMMENTS = _opinions(
    negative=_by_group(
        train="sadly unfortunately regrettably",
        val="alas",
        test="disappointingly annoyingly lamentably",
    ),
    positive=_by_group(
        train="happily luckily thankfully",
        val="hooray",
        test="fortunately gladly mercifully",
    ),
)
"""Words that comment on a whole sentence from its front."""

OPINION_CLASSES = (ADJECTIVES, NOUNS, VERBS, ADVERBS, COMMENTS)

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


DOMAINS = (
    _domain(
        "product", ("kettle toaster", "mixer", "blender juicer"), ("lid spout cord", "jug dial", "blade motor timer")
    ),
    _domain(
        "product",
        ("headset speaker", "microphone", "earpiece soundbar"),
        ("bass sound volume", "treble headband", "battery jack tone"),
    ),
    _domain(
        "product",
        ("sofa bookcase", "armchair", "wardrobe mattress"),
        ("frame fabric assembly", "cushion veneer", "padding drawer varnish"),
    ),
    _domain(
        "product",
        ("jacket sweater", "raincoat", "cardigan waistcoat"),
        ("zipper lining fit", "collar hem", "sleeve stitching pocket"),
    ),
    _domain(
        "product",
        ("drill hammer", "sander", "chisel screwdriver"),
        ("grip trigger casing", "chuck torque", "handle switch balance"),
    ),
    _domain(
        "product",
        ("puzzle doll", "kite", "boardgame robot"),
        ("artwork wheel trim", "paint string", "rulebook packaging colouring"),
    ),
    _domain(
        "product",
        ("phone laptop", "tablet", "camera printer"),
        ("display keyboard charger", "touchpad firmware", "lens software interface"),
    ),
    _domain(
        "product",
        ("lawnmower rake", "wheelbarrow", "sprinkler trowel"),
        ("engine hose shaft", "nozzle bracket", "valve prong pump"),
    ),
    _domain(
        "product",
        ("backpack suitcase", "handbag", "briefcase satchel"),
        ("strap buckle leather", "clasp seam", "compartment latch canvas"),
    ),
    _domain(
        "product",
        ("shampoo perfume", "lotion", "lipstick moisturiser"),
        ("scent texture bottle", "foam shade", "fragrance applicator consistency"),
    ),
    _domain(
        "film",
        ("thriller mystery", "whodunit", "western heist"),
        ("plot suspense acting", "editing casting", "script finale villain"),
    ),
    _domain(
        "film",
        ("comedy musical", "satire", "sitcom operetta"),
        ("humour dialogue singing", "slapstick banter", "timing choreography soundtrack"),
    ),
    _domain(
        "film",
        ("drama romance", "biopic", "melodrama tragedy"),
        ("pacing ending chemistry", "lighting narration", "screenplay cinematography monologue"),
    ),
    _domain(
        "film",
        ("fantasy adventure", "sequel", "epic cartoon"),
        ("animation story hero", "scenery costume", "camerawork storyline voiceover"),
    ),
)

PEOPLE = _by_group(
    "sister neighbour husband daughter grandfather",
    "cousin roommate uncle",
    "brother colleague wife nephew grandmother",
)

TIMES: ByGroup = {
    "train": ("last week", "in March", "on Monday", "this winter", "two months ago"),
    "val": ("in June", "on Sunday", "over Easter"),
    "test": ("yesterday", "in October", "one Friday", "before Christmas", "a fortnight back"),
}

PLACES: ByGroup = {
    "train": ("the mall", "a local shop", "an outlet downtown"),
    "val": ("the fair", "a club"),
    "test": ("the village", "some website", "a market abroad"),
}
