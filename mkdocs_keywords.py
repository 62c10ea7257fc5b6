"""Shows in the documentation the keywords that a constructor takes from a declaration of options."""

from __future__ import annotations

from typing import Any

import griffe


class Keywords(griffe.Extension):
    """For an ``__init__`` decorated with a method of `Keywords(UpOptions)`: the fields of `UpOptions`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """For each class of the package."""
        for module in _modules(pkg):
            for found in module.classes.values():
                if not found.is_alias and "__init__" in found.members:
                    _declare(found.members["__init__"], module)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    inner = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(found for each in inner for found in _modules(each))]


def _declare(method: Any, module: griffe.Module) -> None:
    for decorator in method.decorators:
        keywords = module.members.get(str(decorator.value).partition(".")[0])
        value = str(getattr(keywords, "value", ""))
        if value.startswith("Keywords("):
            declared = module[value.removeprefix("Keywords(").removesuffix(")")]
            method.parameters = griffe.Parameters(method.parameters["self"], *_parameters(declared))


def _parameters(declared: Any) -> list[griffe.Parameter]:
    """The fields of a dataclass, of which those after ``_`` are keywords only."""
    kind, found = griffe.ParameterKind.positional_or_keyword, []
    for name, each in declared.members.items():
        if name == "_":
            kind = griffe.ParameterKind.keyword_only
        elif each.is_attribute and str(each.annotation).startswith("Annotated["):
            annotation = each.annotation.slice.elements[0]
            found.append(griffe.Parameter(name, annotation=annotation, kind=kind, default=each.value))
    return found
