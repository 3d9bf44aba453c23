"""Columns of words, such as the status of a measured row, that are stored as small numbers.

SQLite keeps 0 and 1 in the head of a row, so that the first two words of a list take no byte. In Python a value is its
word everywhere, in comparisons, too. Only SQL that does not go through the tables sees numbers; views give it words.
"""

from sqlalchemy import Dialect, Integer, SmallInteger
from sqlalchemy.types import TypeDecorator

from tuner import errors


class Word(TypeDecorator[str]):
    """One of some words, stored as its place among them: a change of their order needs a migration.

    A stored value that stands for none of them comes out as its repr, which is no word: checks of rows refuse it.
    """

    impl = SmallInteger().with_variant(Integer(), "sqlite")
    cache_ok = True
    python_type = str

    def __init__(self, words: tuple[str, ...]):
        super().__init__()
        self.words = words
        #: What may be stored.
        self.numbers = range(len(words))

    def get_number(self, word: object) -> int:
        """Return what is stored for a word. Raises: IntegrityError where it is none of the list."""
        if word not in self.words:
            raise errors.IntegrityError(f"{str(word)[:80]!r}: none of {', '.join(self.words)}")
        return self.words.index(str(word))

    def get_word(self, stored: object) -> str:
        """Return the word that a stored value stands for, or the value's repr."""
        return self.words[stored] if isinstance(stored, int) and stored in self.numbers else repr(stored)

    def to_sql(self, expression: str) -> str:
        """Return the SQL of the word that stands for the number of an expression."""
        cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in enumerate(self.words))
        return f"CASE {expression} {cases} END"

    def process_bind_param(self, value: object, dialect: Dialect) -> int | None:
        """Return what is stored for a word; called by SQLAlchemy. Raises: IntegrityError."""
        return None if value is None else self.get_number(value)

    def process_result_value(self, value: object, dialect: Dialect) -> str | None:
        """Return the word of a stored value; called by SQLAlchemy."""
        return None if value is None else self.get_word(value)
