"""The languages whose syntax is marked: their grammars, files, definitions and identifiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentspec.index.segment import DefinitionKind

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_LINE_CHARACTERS = 200
"""More of a first line is not looked at."""

_FUNCTION = DefinitionKind.FUNCTION
_METHOD = DefinitionKind.METHOD
_CLASS = DefinitionKind.CLASS
_INTERFACE = DefinitionKind.INTERFACE
_STRUCT = DefinitionKind.STRUCT
_ENUM = DefinitionKind.ENUM
_TYPE = DefinitionKind.TYPE
_MODULE = DefinitionKind.MODULE
_CONSTANT = DefinitionKind.CONSTANT
_MACRO = DefinitionKind.MACRO


@dataclass(frozen=True, slots=True)
class Grammar:
    """One language.

    Attributes:
        language: its name.
        package: the distribution that carries its tree-sitter grammar.
        module: the module in it.
        function: what in that module returns the grammar.
        suffixes: endings of its files, lower case.
        names: whole names of its files, lower case.
        interpreters: programs that a `#!` line names for it.
        identifiers: tree-sitter patterns of its identifier leaves.
        definitions: nodes that define something and have a field `name`, with what they define.
        patterns: tree-sitter patterns of other definitions; a capture `@name` and one called like the kind.
    """

    language: str
    package: str
    module: str
    suffixes: tuple[str, ...]
    identifiers: tuple[str, ...]
    function: str = "language"
    names: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()
    definitions: Mapping[str, DefinitionKind] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()


_JAVASCRIPT_IDENTIFIERS = (
    "(identifier)",
    "(property_identifier)",
    "(private_property_identifier)",
    "(shorthand_property_identifier)",
    "(shorthand_property_identifier_pattern)",
    "(statement_identifier)",
)
_JAVASCRIPT_DEFINITIONS = {
    "function_declaration": _FUNCTION,
    "generator_function_declaration": _FUNCTION,
    "class_declaration": _CLASS,
    "method_definition": _METHOD,
}
_JAVASCRIPT_PATTERNS = (
    "(lexical_declaration . (variable_declarator name: (identifier) @name"
    " value: [(arrow_function) (function_expression) (generator_function)])) @function",
    "(variable_declaration . (variable_declarator name: (identifier) @name"
    " value: [(arrow_function) (function_expression) (generator_function)])) @function",
)
_TYPESCRIPT_IDENTIFIERS = (*_JAVASCRIPT_IDENTIFIERS, "(type_identifier)")
_TYPESCRIPT_DEFINITIONS = {
    **_JAVASCRIPT_DEFINITIONS,
    "function_signature": _FUNCTION,
    "abstract_class_declaration": _CLASS,
    "interface_declaration": _INTERFACE,
    "enum_declaration": _ENUM,
    "type_alias_declaration": _TYPE,
    "internal_module": _MODULE,
}

_C_FUNCTION = "(function_declarator declarator: (_) @name)"
_C_DEFINITIONS = {"preproc_def": _MACRO, "preproc_function_def": _MACRO}
_C_PATTERNS = (
    f"(function_definition declarator: {_C_FUNCTION}) @function",
    f"(function_definition declarator: (pointer_declarator declarator: {_C_FUNCTION})) @function",
    "(struct_specifier name: (_) @name body: (_)) @struct",
    "(union_specifier name: (_) @name body: (_)) @struct",
    "(enum_specifier name: (_) @name body: (_)) @enum",
    "(type_definition declarator: (type_identifier) @name) @type",
)
_C_IDENTIFIERS = ("(identifier)", "(field_identifier)", "(type_identifier)", "(statement_identifier)")

GRAMMARS = (
    Grammar(
        language="Python",
        package="tree-sitter-python",
        module="tree_sitter_python",
        suffixes=(".py", ".pyi", ".pyw", ".bzl"),
        names=("sconstruct", "wscript"),
        interpreters=("python", "python3"),
        identifiers=("(identifier)",),
        definitions={"function_definition": _FUNCTION, "class_definition": _CLASS},
    ),
    Grammar(
        language="JavaScript",
        package="tree-sitter-javascript",
        module="tree_sitter_javascript",
        suffixes=(".js", ".mjs", ".cjs", ".jsx"),
        interpreters=("node",),
        identifiers=_JAVASCRIPT_IDENTIFIERS,
        definitions=_JAVASCRIPT_DEFINITIONS,
        patterns=_JAVASCRIPT_PATTERNS,
    ),
    Grammar(
        language="TypeScript",
        package="tree-sitter-typescript",
        module="tree_sitter_typescript",
        function="language_typescript",
        suffixes=(".ts", ".mts", ".cts"),
        identifiers=_TYPESCRIPT_IDENTIFIERS,
        definitions=_TYPESCRIPT_DEFINITIONS,
        patterns=_JAVASCRIPT_PATTERNS,
    ),
    Grammar(
        language="TSX",
        package="tree-sitter-typescript",
        module="tree_sitter_typescript",
        function="language_tsx",
        suffixes=(".tsx",),
        identifiers=_TYPESCRIPT_IDENTIFIERS,
        definitions=_TYPESCRIPT_DEFINITIONS,
        patterns=_JAVASCRIPT_PATTERNS,
    ),
    Grammar(
        language="Go",
        package="tree-sitter-go",
        module="tree_sitter_go",
        suffixes=(".go",),
        identifiers=("(identifier)", "(field_identifier)", "(type_identifier)", "(package_identifier)"),
        definitions={"function_declaration": _FUNCTION, "method_declaration": _METHOD, "type_alias": _TYPE},
        patterns=(
            "(type_declaration . (type_spec name: (_) @name type: (struct_type)) .) @struct",
            "(type_declaration . (type_spec name: (_) @name type: (interface_type)) .) @interface",
            "(type_spec name: (_) @name) @type",
        ),
    ),
    Grammar(
        language="Rust",
        package="tree-sitter-rust",
        module="tree_sitter_rust",
        suffixes=(".rs",),
        identifiers=("(identifier)", "(field_identifier)", "(type_identifier)", "(shorthand_field_identifier)"),
        definitions={
            "function_item": _FUNCTION,
            "struct_item": _STRUCT,
            "union_item": _STRUCT,
            "enum_item": _ENUM,
            "trait_item": _INTERFACE,
            "mod_item": _MODULE,
            "type_item": _TYPE,
            "const_item": _CONSTANT,
            "static_item": _CONSTANT,
            "macro_definition": _MACRO,
        },
        patterns=("(impl_item body: (declaration_list (function_item name: (_) @name) @method))",),
    ),
    Grammar(
        language="Java",
        package="tree-sitter-java",
        module="tree_sitter_java",
        suffixes=(".java",),
        identifiers=("(identifier)", "(type_identifier)"),
        definitions={
            "class_declaration": _CLASS,
            "record_declaration": _CLASS,
            "interface_declaration": _INTERFACE,
            "annotation_type_declaration": _INTERFACE,
            "enum_declaration": _ENUM,
            "method_declaration": _METHOD,
            "constructor_declaration": _METHOD,
        },
    ),
    Grammar(
        language="C",
        package="tree-sitter-c",
        module="tree_sitter_c",
        suffixes=(".c",),
        identifiers=_C_IDENTIFIERS,
        definitions=_C_DEFINITIONS,
        patterns=_C_PATTERNS,
    ),
    Grammar(
        language="C++",
        package="tree-sitter-cpp",
        module="tree_sitter_cpp",
        suffixes=(".cpp", ".cc", ".cxx", ".c++", ".hpp", ".hh", ".hxx", ".h", ".ipp", ".inl", ".cu", ".cuh"),
        identifiers=(*_C_IDENTIFIERS, "(namespace_identifier)"),
        definitions={
            **_C_DEFINITIONS,
            "namespace_definition": _MODULE,
            "alias_declaration": _TYPE,
            "concept_definition": _TYPE,
        },
        patterns=(
            *_C_PATTERNS,
            f"(function_definition declarator: (reference_declarator {_C_FUNCTION})) @function",
            "(class_specifier name: (_) @name body: (_)) @class",
        ),
    ),
    Grammar(
        language="C#",
        package="tree-sitter-c-sharp",
        module="tree_sitter_c_sharp",
        suffixes=(".cs",),
        identifiers=("(identifier)",),
        definitions={
            "class_declaration": _CLASS,
            "record_declaration": _CLASS,
            "struct_declaration": _STRUCT,
            "interface_declaration": _INTERFACE,
            "enum_declaration": _ENUM,
            "delegate_declaration": _TYPE,
            "namespace_declaration": _MODULE,
            "method_declaration": _METHOD,
            "constructor_declaration": _METHOD,
        },
    ),
    Grammar(
        language="Ruby",
        package="tree-sitter-ruby",
        module="tree_sitter_ruby",
        suffixes=(".rb", ".rake", ".gemspec", ".ru"),
        names=("rakefile", "gemfile", "guardfile", "vagrantfile"),
        interpreters=("ruby",),
        identifiers=("(identifier)", "(constant)", "(instance_variable)", "(class_variable)", "(global_variable)"),
        definitions={"method": _METHOD, "singleton_method": _METHOD, "class": _CLASS, "module": _MODULE},
    ),
    Grammar(
        language="PHP",
        package="tree-sitter-php",
        module="tree_sitter_php",
        function="language_php",
        suffixes=(".php", ".phtml"),
        interpreters=("php",),
        identifiers=("(name)",),
        definitions={
            "function_definition": _FUNCTION,
            "method_declaration": _METHOD,
            "class_declaration": _CLASS,
            "interface_declaration": _INTERFACE,
            "trait_declaration": _INTERFACE,
            "enum_declaration": _ENUM,
        },
    ),
    Grammar(
        language="Bash",
        package="tree-sitter-bash",
        module="tree_sitter_bash",
        suffixes=(".sh", ".bash", ".zsh", ".bats"),
        names=(".bashrc", ".bash_profile", ".profile", ".zshrc"),
        interpreters=("sh", "bash", "dash", "zsh"),
        identifiers=("(variable_name)", "(command_name)", "(function_definition name: (word) @leaf)"),
        definitions={"function_definition": _FUNCTION},
    ),
    Grammar(
        language="JSON",
        package="tree-sitter-json",
        module="tree_sitter_json",
        suffixes=(".json", ".jsonc", ".webmanifest", ".geojson"),
        identifiers=("(pair key: (string (string_content) @leaf))",),
    ),
    Grammar(
        language="YAML",
        package="tree-sitter-yaml",
        module="tree_sitter_yaml",
        suffixes=(".yaml", ".yml"),
        identifiers=(
            "(block_mapping_pair key: (flow_node) @leaf)",
            "(flow_pair key: (flow_node) @leaf)",
            "(anchor_name)",
            "(alias_name)",
        ),
    ),
    Grammar(
        language="HTML",
        package="tree-sitter-html",
        module="tree_sitter_html",
        suffixes=(".html", ".htm", ".xhtml"),
        identifiers=("(tag_name)", "(attribute_name)"),
    ),
    Grammar(
        language="CSS",
        package="tree-sitter-css",
        module="tree_sitter_css",
        suffixes=(".css",),
        identifiers=("(class_name)", "(id_name)", "(tag_name)", "(property_name)", "(function_name)"),
    ),
)


def grammar_in(path: str, text: str) -> Grammar | None:
    """The language of a file with this text, see `grammar_of`."""
    return grammar_of(path, text[:_FIRST_LINE_CHARACTERS].partition("\n")[0])


def grammar_of(path: str, first_line: str) -> Grammar | None:
    """The language of a file, by its name or else by its `#!` line; None when no grammar covers it."""
    name = path.rpartition("/")[2].lower()
    suffix = "." + name.rpartition(".")[2] if "." in name.lstrip(".") else ""
    for grammar in GRAMMARS:
        if suffix in grammar.suffixes or name in grammar.names:
            return grammar
    if not first_line.startswith("#!"):
        return None
    words = [word.rpartition("/")[2] for word in first_line[2:].split()]
    interpreter = next((word for word in words if word not in ("env", "-S")), "")
    for grammar in GRAMMARS:
        if interpreter in grammar.interpreters:
            return grammar
    return None
