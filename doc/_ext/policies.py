"""The policy rules of the service, with what they are for and who passes by default."""

from placement.policies import list_rules


def page() -> str:
    """A table of rules and their operations, as markdown."""
    return "\n".join(
        line
        for rule in list_rules()
        for line in (
            f"\n## {rule.name}\n",
            f"{rule.description or ''}\n",
            f"Default: `{rule.check_str or '(everybody)'}`\n",
            *(
                f"- `{method}` `{operation['path']}`"
                for operation in getattr(rule, "operations", ())
                for method in (
                    operation["method"] if isinstance(operation["method"], list) else [operation["method"]]
                )
            ),
        )
    )
