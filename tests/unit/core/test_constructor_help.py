from conquiet.core.constructor_help import describe_constructor, describe_constructors


class Described:
    """A class.

    Args:
        name: Its name.
    """

    __module__ = "conquiet.example"

    def __init__(self, name: str) -> None:
        self.name = name


class Own(Described):
    """A class with a documented constructor."""

    __module__ = "conquiet.example"

    def __init__(self) -> None:
        """Take nothing."""
        super().__init__("own")


class Foreign:
    """A class of another library."""

    def __init__(self) -> None:
        self.name = ""


def test_a_constructor_gets_the_description_of_its_class() -> None:
    describe_constructors({"Described": Described, "Own": Own, "number": 7})

    assert Described.__init__.__doc__ == Described.__doc__
    assert Own.__init__.__doc__ == "Take nothing."


def test_classes_of_others_stay_as_they_are() -> None:
    describe_constructor(Foreign)

    assert Foreign.__init__.__doc__ is None
