"""A kind of import contract that import-linter lacks: the list of modules that a package may use."""

from grimp import ImportGraph
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck


class AllowedImports(Contract):
    """The package imports no other module of ``uses`` than ``allowed``, and each of these.

    The list is no longer than what is imported, so that it shows how much of the other package is public.
    """

    type_name = "allowed_imports"

    package = fields.StringField()
    uses = fields.StringField()
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare the direct imports of the package with the list."""
        package, uses = str(self.package), str(self.uses)
        imported = {
            name: importer
            for importer in (package, *graph.find_descendants(package))
            for name in graph.find_modules_directly_imported_by(importer)
            if name == uses or name.startswith(f"{uses}.")
        }
        allowed = set(self.allowed)  # type: ignore[call-overload]  # a field is a descriptor without a type
        refused = sorted(f"{imported[name]} -> {name}" for name in set(imported) - allowed)
        unused = sorted(allowed - set(imported))
        return ContractCheck(kept=not refused and not unused, metadata={"refused": refused, "unused": unused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the imports that the list lacks, and its entries without one."""
        for each in check.metadata["refused"]:
            output.print_error(f"{each}: not in the list of allowed modules")
        for each in check.metadata["unused"]:
            output.print_error(f"{each}: allowed, but not imported")
