-- Open requests are about data that is not there any more.
INSERT INTO {restored} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {replaced}
