r.id, r.flow, r.version, r.state, coalesce(r.key, ''), r.unfinished, {time r.cancel_at}, {time r.created_at}, {time r.finished_at}
