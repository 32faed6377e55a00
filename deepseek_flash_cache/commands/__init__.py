"""The subcommands of `dfc`, one module each, holding a click command of the module's name."""
