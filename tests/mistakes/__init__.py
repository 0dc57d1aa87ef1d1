"""The 102 mistakes that a newcomer made with an early version, numbered, and eight more.

Each has a message with the mistake, its place and the remedy, and an exit code:

::

    entries     the kinds of entries
    programs    a program without a mistake, which the entries change
    of_code, of_graphs, of_settings, of_commands, of_stores, of_tests    the entries, by subject
    test_mistakes_of_newcomers    runs them
"""
