-- How far a numbered table is written: by sender, its number of rows; and the pipeline's id.
SELECT pipeline.id::text, COALESCE(
    (
        SELECT jsonb_object_agg(numbered_rows.sender, numbered_rows.rows)
        FROM {numbered_rows} AS numbered_rows
        WHERE numbered_rows.table_name = %(table)s
    ),
    '{{}}'
)
FROM {pipeline} AS pipeline
