"""Can a bound on what is lost stand in for a strength that is searched for?"""
