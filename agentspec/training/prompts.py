"""What the target is asked for, so that its own answers become training data: prose about code, new code, edits."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from agentspec.engines.base import ChatPrompt
from agentspec.errors import InvalidRequestError
from agentspec.training.sources import functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agentspec.training.sources import Function

EXPLAIN = (
    "Explain what this function does.",
    "Explain the following code step by step.",
    "What does this code do? Which problems could it have?",
    "Summarise this function in a short paragraph, then list its parameters.",
    "Review this code and suggest improvements.",
    "Explain this code to a beginner, then show how it could be improved.",
    "How would you test this function? Explain, then write the tests.",
)
EDIT = (
    "Add type hints to this function. Answer with the complete function.",
    "Add a docstring to this function.",
    "Rename the function to `{new}`. Answer with the complete code.",
    "Add error handling to this function and explain what you changed.",
    "Rewrite this function so that it is easier to read. Answer with the complete function.",
    "Explain what you would change in this function, then apply the change.",
)
WRITE = (
    "Write a Python function `{signature}`: {purpose}",
    "Write a function named `{name}` in {language}. {purpose}",
    "Implement `{name}` in {language}. {purpose} Explain your solution.",
    "I need a {language} function that does the following: {purpose} Show the code first, then an example.",
)
ASK = (
    "What is {topic}? Explain with an example.",
    "Explain {topic} in {language}.",
    "Write a short {language} program that shows {topic}.",
    "How does {topic} work, and when should I use it?",
    "Write a {language} class for {topic}.",
    "What are the advantages and disadvantages of {topic}?",
    "Write a README section about {topic}.",
    "Give me five tips about {topic}.",
)
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "TypeScript", "Java", "C", "C++", "Go", "Rust", "Bash", "SQL")
TOPICS = (
    "a hash map", "a binary search", "a linked list", "a priority queue", "recursion", "memoization", "a decorator",
    "a context manager", "a generator", "an iterator", "exception handling", "unit testing", "mocking", "logging",
    "a REST API", "an HTTP client", "a command line parser", "a configuration file", "JSON parsing", "a CSV reader",
    "regular expressions", "a tokenizer", "a parser", "a state machine", "an LRU cache", "a thread pool", "a mutex",
    "a semaphore", "asynchronous programming", "an event loop", "a message queue", "a database transaction",
    "an index in a database", "a foreign key", "a join", "pagination", "authentication", "rate limiting", "caching",
    "load balancing", "dependency injection", "the observer pattern", "the factory pattern", "the strategy pattern",
    "a singleton", "inheritance", "composition", "polymorphism", "an interface", "an abstract class", "a data class",
    "type hints", "an enum", "a set", "a tuple", "a dictionary", "a stack", "a queue", "a binary tree", "a graph",
    "breadth-first search", "depth-first search", "Dijkstra's algorithm", "quicksort", "merge sort", "bubble sort",
    "dynamic programming", "a matrix", "a prime sieve", "the greatest common divisor", "a random number generator",
    "a date formatter", "a file watcher", "a directory walker", "a temperature converter", "a calculator",
    "a shopping cart", "a bank account", "a todo list", "a text editor", "version control", "a merge conflict",
    "code review", "continuous integration", "a Docker container", "an environment variable", "a package manager",
    "semantic versioning", "refactoring", "technical debt", "an edge case", "input validation", "a race condition",
    "a deadlock", "a memory leak", "garbage collection", "a pointer", "a closure", "a lambda function",
    "map and filter", "string formatting", "a web server", "a web scraper", "a login form", "an email validator",
    "a password generator",
)  # fmt: skip

KINDS = {"explain": 0.35, "write": 0.3, "edit": 0.15, "ask": 0.2}
"""Share of each kind of prompt."""


def code_prompts(files: Iterable[Path], count: int, seed: int) -> list[str]:
    """Questions about code, of the kinds in `KINDS`, in an order that `seed` fixes.

    Args:
        files: Python files to quote functions from.
        count: number of prompts; fewer come back when the files hold too little.
        seed: of the choice.
    """
    chance = random.Random(seed)
    pool = [function for file in files for function in functions(_text(file))]
    chance.shuffle(pool)
    described = [function for function in pool if 20 < len(function.purpose) < 160]
    makers = {
        "explain": (_quoting(pool, EXPLAIN, chance)),
        "edit": (_quoting(pool[::-1], EDIT, chance)),
        "write": (_writing(described, chance)),
        "ask": (_asking(chance)),
    }
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=count)
    prompts = [next(makers[kind], None) for kind in kinds]
    return list(dict.fromkeys(prompt for prompt in prompts if prompt))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _quoting(pool: list[Function], asks: tuple[str, ...], chance: random.Random) -> Iterator[str]:
    for function in pool:
        ask = chance.choice(asks).format(new=f"{function.name.strip('_')}_{chance.choice(('all', 'new', 'safe'))}")
        code = f"```python\n{function.source}\n```"
        yield f"{ask}\n\n{code}" if chance.random() < 0.7 else f"{code}\n\n{ask}"


def _writing(pool: list[Function], chance: random.Random) -> Iterator[str]:
    for function in pool:
        purpose = function.purpose.rstrip(".") + "."
        yield chance.choice(WRITE).format(
            name=function.name, signature=function.signature, purpose=purpose, language=chance.choice(LANGUAGES)
        )


def _asking(chance: random.Random) -> Iterator[str]:
    while True:
        yield chance.choice(ASK).format(topic=chance.choice(TOPICS), language=chance.choice(LANGUAGES))


def chat_prompts(file: Path) -> list[ChatPrompt]:
    """Conversations from a JSONL file, up to the turn before each one's last assistant message.

    A line holds `{"messages": [{"role": ..., "content": ...}, ...]}`, as OpenAI's fine-tuning files do.

    Raises:
        InvalidRequestError: a line is something else; the message names it.
    """
    prompts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            messages = json.loads(line)["messages"]
            roles = [message["role"] for message in messages]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f'{file}, line {number}: expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            ) from error
        last = max((at for at, role in enumerate(roles) if role == "assistant"), default=len(roles))
        prompts.append(ChatPrompt(tuple(messages[:last])))
    return prompts
