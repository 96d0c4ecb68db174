-- OMOP CDM 5.4: one row a visit: inpatient (9201, intensive care 32037), outpatient (9202), emergency room (9203), or an emergency that
-- led to a stay (262), each with all descendants. A visit that ends before it begins has no days. misses.sql counts what is left aside.
WITH persons AS (
    -- A person once, however often the table has them.
    SELECT person_id, max(year_of_birth) AS year_of_birth, max(gender_concept_id) AS gender_concept_id
    FROM person
    GROUP BY person_id
),
concepts AS (
    -- Kinds of visits by concept: those named here, and what is below them in the vocabulary. 262 is an emergency that led to a stay.
    SELECT
        concept_id,
        CASE
            WHEN max(CASE WHEN kind = 'both' THEN 1 ELSE 0 END) = 1 THEN 'emergency and inpatient'
            WHEN max(CASE WHEN kind = 'emergency' THEN 1 ELSE 0 END) = 1 AND max(CASE WHEN kind = 'inpatient' THEN 1 ELSE 0 END) = 1
                THEN 'emergency and inpatient'
            WHEN max(CASE WHEN kind = 'emergency' THEN 1 ELSE 0 END) = 1 THEN 'emergency'
            WHEN max(CASE WHEN kind = 'inpatient' THEN 1 ELSE 0 END) = 1 THEN 'inpatient'
            ELSE 'outpatient'
        END AS kind
    FROM (
        SELECT
            descendant_concept_id AS concept_id,
            CASE ancestor_concept_id WHEN 262 THEN 'both' WHEN 9203 THEN 'emergency' WHEN 9202 THEN 'outpatient' ELSE 'inpatient' END AS kind
        FROM concept_ancestor
        WHERE ancestor_concept_id IN (9201, 9202, 9203, 262, 32037)
        UNION ALL SELECT 262, 'both'
        UNION ALL SELECT 9203, 'emergency'
        UNION ALL SELECT 9201, 'inpatient'
        UNION ALL SELECT 32037, 'inpatient'
        UNION ALL SELECT 9202, 'outpatient'
    ) AS named
    GROUP BY concept_id
),
visits AS (
    SELECT DISTINCT person_id, visit_occurrence_id, visit_concept_id, visit_start_date, visit_end_date
    FROM visit_occurrence
)
SELECT
    visits.person_id,
    concepts.kind,
    CASE
        WHEN visits.visit_end_date >= visits.visit_start_date
            THEN CAST(EXTRACT(EPOCH FROM visits.visit_end_date) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM visits.visit_start_date) AS float8) / 86400
    END AS days,
    CAST(EXTRACT(YEAR FROM visits.visit_start_date) AS float8) - persons.year_of_birth AS age
FROM visits
JOIN persons ON persons.person_id = visits.person_id
LEFT JOIN concepts ON concepts.concept_id = visits.visit_concept_id
