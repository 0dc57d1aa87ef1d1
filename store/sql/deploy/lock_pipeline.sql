-- Lets only one session at a time deploy, migrate, change or drop the pipeline, until its transaction ends. Readers of the
-- table do not wait; only a worker or an owner may take this lock, while an advisory one is free to every login.
LOCK TABLE {generation} IN SHARE ROW EXCLUSIVE MODE
