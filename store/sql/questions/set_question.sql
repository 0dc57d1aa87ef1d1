-- What the blocks of the next statements read, until the end of the transaction; and the time that the next one has.
-- A text with a value of the user's could not be a parameter of DO.
SELECT set_config('millwheel.statement', %(statement)s, true),
       set_config('millwheel.columns', %(columns)s::text, true),
       set_config('millwheel.characters', %(characters)s::text, true),
       set_config('millwheel.rows', %(rows)s::text, true),
       set_config('millwheel.bytes', %(bytes)s::text, true),
       set_config('millwheel.answer', '', true),
       set_config('statement_timeout', %(milliseconds)s::text, true)
