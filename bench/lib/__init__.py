"""The parts of `bench/run`; standard library only."""
