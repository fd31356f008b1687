"""The part of a config that the trainer shares with the simulator: rules and controller."""

from fade_sim import config
from fade_sim.advantage import controller, describe


def check_config(source: str) -> str:
    """A line per rule of a config: its label, equation, and the controller's settings where it has one.

    Raises InputError as `fade_sim.config.load` does.
    """
    lines = []
    for contender in config.load(source).contenders:
        about = describe(contender.method)
        lines.append(f"{contender.label}: {about['equation']}; uniform groups: {about['uniform_groups']}")
        if contender.method.rule.adaptive:
            state = controller.to_dict(contender.controller)
            shown = ", ".join(f"{k} = {state[k]}" for k in ("rate", "h_star", "delta_min", "alpha_max", "ablation"))
            lines.append(f"  controller: {shown}")
    return "\n".join(lines)
