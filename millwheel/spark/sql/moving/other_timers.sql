SELECT DISTINCT computation, kind FROM {timers} WHERE kind <> 'watermark' ORDER BY 1, 2
