"""Whether two models speak of the same tokens: log-probs of one id can be compared only then."""

from typing import Any

from codriver.errors import InputError


def real_vocab_size(tokenizer: Any) -> int:
    """Largest id that stands for a token, plus 1; added tokens count, padding rows of a model's head do not."""
    return int(max(tokenizer.get_vocab().values())) + 1


def require_same_vocabulary(student_tokenizer: Any, teacher_tokenizer: Any, *, teacher_name: str) -> int:
    """The number of ids that both share. Heads may have more rows than that, and not equally many.

    Raises:
        InputError: an id stands for different tokens, or for one in only one of the two; the first such id is named.
    """
    student, teacher = _tokens_by_id(student_tokenizer), _tokens_by_id(teacher_tokenizer)
    if student == teacher:
        return max(student) + 1
    first = min(i for i in student.keys() | teacher.keys() if student.get(i) != teacher.get(i))
    raise InputError(
        f"teacher {teacher_name}: its vocabulary is not the student's: id {first} is {_shown(student.get(first))} for "
        f"the student and {_shown(teacher.get(first))} for the teacher ({len(student)} and {len(teacher)} tokens); "
        f"choose a teacher of the student's model family"
    )


def special_token_differences(student_tokenizer: Any, teacher_tokenizer: Any, *, teacher_name: str) -> list[str]:
    """Warnings: the vocabularies agree, but a token plays another part, so the teacher may expect another ending."""
    differences = []
    for name in ("eos", "bos", "pad"):
        ours, theirs = (getattr(tok, f"{name}_token_id") for tok in (student_tokenizer, teacher_tokenizer))
        if ours != theirs:
            tokens = [_shown(getattr(tok, f"{name}_token")) for tok in (student_tokenizer, teacher_tokenizer)]
            differences.append(
                f"teacher {teacher_name}: its {name} token is {tokens[1]} (id {theirs}), the student's is {tokens[0]} "
                f"(id {ours})"
            )
    return differences


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {i: token for token, i in tokenizer.get_vocab().items()}


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
