-- OMOP CDM 5.4: one row a person who was observed.
WITH period AS (
    SELECT person_id, min(observation_period_start_date) AS begins, max(observation_period_end_date) AS ends
    FROM observation_period
    GROUP BY person_id
)
SELECT
    person.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - person.year_of_birth AS age,
    CASE person.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    CAST(EXTRACT(EPOCH FROM period.ends) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM period.begins) AS float8) / 86400 AS days_observed,
    CASE WHEN death.person_id IS NULL THEN 'no' ELSE 'yes' END AS died
FROM person
JOIN period ON period.person_id = person.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = person.person_id
