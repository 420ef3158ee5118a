"""The methods. METHODS is a dictionary you can read; adding one is one file and one line."""

from metasp.errors import unknown
from metasp.methods.agem import AGEM
from metasp.methods.er import ER
from metasp.methods.finetune import Finetune
from metasp.methods.gdumb import GDumb
from metasp.methods.gem import GEM
from metasp.methods.gmed import GMED
from metasp.methods.gss import GSS
from metasp.methods.hal import HAL
from metasp.methods.joint import Joint
from metasp.methods.method import Method
from metasp.methods.mir import MIR

METHODS: dict[str, type[Method]] = {
    "finetune": Finetune,
    "joint": Joint,
    "er": ER,
    "gdumb": GDumb,
    "gem": GEM,
    "agem": AGEM,
    "hal": HAL,
    "mir": MIR,
    "gss": GSS,
    "gmed": GMED,
}


def method(name: str) -> type[Method]:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
