"""Classification of guests: the settings of each guest, and the source of each setting.

Nouns: *facts* are the known properties of a guest: driver, names, flavor, image, owner and allocation. A
*rule* is a section ``[guest_rule:NAME]``, which matches facts and has settings. The *source* of a setting is
one of: by hand, fleet, domain or start, flavor, image, rule, default. This is their order, strongest first.

Example: flavor ``batch`` has the extra spec ``compute_agent:qos_class=BE``, and rule ``night`` matches
project ``lab`` and has ``qos_class = LS, priority = 5``. A guest of that flavor and project has class BE from
its flavor, and priority 5 from the rule. After ``compute-agent guest set --qos-class LSR`` the guest has
class LSR, set by hand.

Invariants. A setting has one source. Only the first matching rule counts; rules are sorted by ``order`` and
then by name. If a value cannot be used, the setting comes from the next source, and the value is reported as
a problem. All functions are pure. A function that reads the configuration raises ConfigError if an option is
wrong; the text names section and option.
"""
