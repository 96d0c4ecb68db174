-- OMOP CDM 5.4: one row a person who was observed.
WITH @persons,
@period
SELECT
    persons.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - persons.year_of_birth AS age,
    CASE persons.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    period.days AS days_observed,
    CASE WHEN death.person_id IS NULL THEN 'no' ELSE 'yes' END AS died
FROM persons
JOIN period ON period.person_id = persons.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = persons.person_id
