-- OMOP CDM 5.4: one row a person who was observed, and which of these conditions were ever recorded, with all descendants:
--   diabetes: 201820, diabetes mellitus
--   hypertension: 316866, hypertensive disorder
--   heart_failure: 316139, heart failure
--   copd: 255573, chronic obstructive pulmonary disease
WITH @persons,
@conditions
SELECT
    persons.person_id,
    CASE WHEN conditions.diabetes = 1 THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension = 1 THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure = 1 THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd = 1 THEN 'yes' ELSE 'no' END AS copd
FROM persons
JOIN (SELECT DISTINCT person_id FROM observation_period) AS observed ON observed.person_id = persons.person_id
LEFT JOIN conditions ON conditions.person_id = persons.person_id
