"""The simulated devices and links: their profiles, availability and load, and what a visit costs on them.

Everything here is a pure function of its arguments: no clock, no I/O, no random generator of its own. Bandwidths
are in bits a second, latencies and delays in seconds, energy in joules, compute in training samples a second of the
reference model.
"""

from shared.simulation.availability import Always as Always
from shared.simulation.availability import Availability as Availability
from shared.simulation.availability import OnOff as OnOff
from shared.simulation.availability import Trace as Trace
from shared.simulation.availability import is_on as is_on
from shared.simulation.availability import next_on as next_on
from shared.simulation.availability import parse_traces as parse_traces
from shared.simulation.device_file import DeviceFile as DeviceFile
from shared.simulation.device_specs import DeviceSpec as DeviceSpec
from shared.simulation.device_specs import EdgeLinkSpec as EdgeLinkSpec
from shared.simulation.device_specs import LinkSpec as LinkSpec
from shared.simulation.device_specs import ProfileSpec as ProfileSpec
from shared.simulation.device_specs import ShareSpec as ShareSpec
from shared.simulation.distributions import LogNormal as LogNormal
from shared.simulation.distributions import LogNormalPart as LogNormalPart
from shared.simulation.distributions import Normal as Normal
from shared.simulation.distributions import Pareto as Pareto
from shared.simulation.distributions import Parts as Parts
from shared.simulation.distributions import Quantity as Quantity
from shared.simulation.distributions import Seeds as Seeds
from shared.simulation.distributions import Uniform as Uniform
from shared.simulation.distributions import Zipf as Zipf
from shared.simulation.distributions import drawn as drawn
from shared.simulation.distributions import part_of as part_of
from shared.simulation.distributions import quantile as quantile
from shared.simulation.distributions import uniform01 as uniform01
from shared.simulation.load import MIN_FREE as MIN_FREE
from shared.simulation.load import Load as Load
from shared.simulation.load import NoLoad as NoLoad
from shared.simulation.load import free_share as free_share
from shared.simulation.profile import REFERENCE_FLOPS as REFERENCE_FLOPS
from shared.simulation.profile import Link as Link
from shared.simulation.profile import Profile as Profile
from shared.simulation.profile_catalogue import PROFILES as PROFILES
from shared.simulation.profile_catalogue import known_profile as known_profile
from shared.simulation.profile_sampling import Profiles as Profiles
from shared.simulation.profile_sampling import apportioned as apportioned
from shared.simulation.profile_sampling import catalogue_profile as catalogue_profile
from shared.simulation.profile_sampling import drawn_profiles as drawn_profiles
from shared.simulation.profile_sampling import link_of as link_of
from shared.simulation.profile_sampling import profiles_of as profiles_of
