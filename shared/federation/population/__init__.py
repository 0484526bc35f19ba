"""The population of a run: its seats, edges and test sets, derived from spec and data."""

from shared.federation.population.derivation import population as population
from shared.federation.population.devices import device_seeds as device_seeds
from shared.federation.population.devices import run_seeds as run_seeds
from shared.federation.population.latencies import Latencies as Latencies
from shared.federation.population.population import Population as Population
from shared.federation.population.population import counts_of as counts_of
from shared.federation.population.seats import EdgeSeat as EdgeSeat
from shared.federation.population.seats import Role as Role
from shared.federation.population.seats import Seat as Seat
from shared.federation.population.seats import Seats as Seats
from shared.federation.population.seats import SeatSamples as SeatSamples
from shared.federation.population.seats import by_home_edge as by_home_edge
from shared.federation.population.seats import numbers_of as numbers_of
from shared.federation.population.seats import seated as seated
from shared.federation.test_sets import Indices as Indices
from shared.federation.test_sets import Samples as Samples
