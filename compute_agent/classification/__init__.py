"""Classification of guests: the settings of each guest, and the source of each setting.

Nouns: *facts* are known properties of a guest (its driver, names, flavor, image, owner and allocation). A
*rule* is a section ``[guest_rule:NAME]``, which matches facts and has settings. A *source* of a setting is
one of by hand, fleet, domain or start, flavor, image, rule and default, strongest first.

Example: flavor ``batch`` has the extra spec ``compute_agent:qos_class=BE``, and rule ``night`` matches
project ``lab`` and has ``qos_class = LS, priority = 5``. A guest of that flavor and project is BE, as its
flavor says, with priority 5, as the rule says. After ``compute-agent guest set --qos-class LSR`` it is LSR by
hand.

Invariants. A setting has one source. Only the first rule that matches counts, in the order of ``order`` and
then of names. A value that cannot be used leaves the setting to the next source, and is a problem in words.
All functions are pure.
"""
