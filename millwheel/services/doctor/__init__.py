"""The examination of a store, a machine and a pipeline before a worker starts: `millwheel doctor`.

=================== ==============================================================================
`findings`          the result of one check
`providers`         managed services: how they are recognised, and how a setting is made there
`reaching`          why a server cannot be reached, and the remedy
`server_checks`     the facts of a server, judged without a connection
`store_checks`      a store: its address, its server or directory, and a pipeline's schema
`machine_checks`    Python, packages, Java, ports
`pipeline_checks`   the files, brokers and folders of a pipeline's sources and sinks
=================== ==============================================================================
"""
