-- A store of objects is a unit of a move too. It has no slot and no position; its keys are in
-- blob_key, and what is counted of it as rows are objects.

alter table monarch_ledger.move_unit add column of_objects boolean not null default false;
