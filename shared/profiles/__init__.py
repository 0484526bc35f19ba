"""Profiles: what devices and links can do, as a spec describes them and as a seat has them.

Pure functions of what is handed in: no clock, no I/O, no generator of their own. Bandwidths are in bits a second,
latencies and delays in seconds, energy in joules, compute in training samples a second of the reference model.
"""

from shared.profiles.amounts import Amount as Amount
from shared.profiles.amounts import Normal as Normal
from shared.profiles.amounts import Pareto as Pareto
from shared.profiles.amounts import Parts as Parts
from shared.profiles.amounts import Seeds as Seeds
from shared.profiles.amounts import Uniform as Uniform
from shared.profiles.amounts import Zipf as Zipf
from shared.profiles.amounts import drawn as drawn
from shared.profiles.amounts import part_of as part_of
from shared.profiles.amounts import quantile as quantile
from shared.profiles.amounts import unit as unit
from shared.profiles.availability import Always as Always
from shared.profiles.availability import Availability as Availability
from shared.profiles.availability import OnOff as OnOff
from shared.profiles.availability import Trace as Trace
from shared.profiles.availability import is_on as is_on
from shared.profiles.availability import next_on as next_on
from shared.profiles.catalogue import PROFILES as PROFILES
from shared.profiles.load import LEAST_FREE as LEAST_FREE
from shared.profiles.load import Load as Load
from shared.profiles.load import NoLoad as NoLoad
from shared.profiles.load import free_share as free_share
from shared.profiles.resolve import apportioned as apportioned
from shared.profiles.resolve import link_of as link_of
from shared.profiles.resolve import named as named
from shared.profiles.resolve import profiles_of as profiles_of
from shared.profiles.specs import DeviceSpec as DeviceSpec
from shared.profiles.specs import EdgeLinkSpec as EdgeLinkSpec
from shared.profiles.specs import LinkSpec as LinkSpec
from shared.profiles.specs import ProfileSpec as ProfileSpec
from shared.profiles.specs import ShareSpec as ShareSpec
from shared.profiles.traces import parse_traces as parse_traces
from shared.profiles.values import REFERENCE_FLOPS as REFERENCE_FLOPS
from shared.profiles.values import Link as Link
from shared.profiles.values import Profile as Profile
