"""Reading sources into injectors' intervals."""
