-- OMOP CDM 5.4: one row a visit: inpatient (9201), outpatient (9202), emergency room (9203, and 262 where it led to a stay).
SELECT
    visit_occurrence.person_id,
    CASE visit_occurrence.visit_concept_id
        WHEN 9201 THEN 'inpatient'
        WHEN 9202 THEN 'outpatient'
        WHEN 9203 THEN 'emergency'
        WHEN 262 THEN 'emergency'
    END AS kind,
    CAST(EXTRACT(EPOCH FROM visit_occurrence.visit_end_date) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM visit_occurrence.visit_start_date) AS float8) / 86400 AS days,
    CAST(EXTRACT(YEAR FROM visit_occurrence.visit_start_date) AS float8) - person.year_of_birth AS age
FROM visit_occurrence
JOIN person ON person.person_id = visit_occurrence.person_id
