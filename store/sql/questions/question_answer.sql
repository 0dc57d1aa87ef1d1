-- What the last block has found.
SELECT current_setting('millwheel.answer')
