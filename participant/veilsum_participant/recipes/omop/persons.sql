-- OMOP CDM 5.4: one row a person who was observed.
WITH persons AS (
    -- A person once, however often the table has them.
    SELECT person_id, max(year_of_birth) AS year_of_birth, max(gender_concept_id) AS gender_concept_id
    FROM person
    GROUP BY person_id
),
period AS (
    SELECT person_id, min(observation_period_start_date) AS begins, max(observation_period_end_date) AS ends
    FROM observation_period
    GROUP BY person_id
)
SELECT
    persons.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - persons.year_of_birth AS age,
    CASE persons.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    CASE
        WHEN period.ends >= period.begins
            THEN CAST(EXTRACT(EPOCH FROM period.ends) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM period.begins) AS float8) / 86400
    END AS days_observed,
    CASE WHEN death.person_id IS NULL THEN 'no' ELSE 'yes' END AS died
FROM persons
JOIN period ON period.person_id = persons.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = persons.person_id
