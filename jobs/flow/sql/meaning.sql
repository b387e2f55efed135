-- The effect of the end of a step e along its edge d.
CASE d."on" WHEN 'end' THEN true WHEN 'failure' THEN e.failed ELSE e.good AND (d."when" IS NULL OR coalesce(e.result @> d."when", false)) END
