"""The reference of the service's policy rules, with their descriptions, defaults and operations."""

from placement.policies import list_rules


def page() -> str:
    """Return a section for each rule, with its default and its operations, as markdown."""
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
