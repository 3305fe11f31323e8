"""Long conversations: when to shorten them, where to cut, who summarises, how the result is applied.

Nothing is exported here: the settings are needed to read a configuration, the rest only once a turn runs.
"""
