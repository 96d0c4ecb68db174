-- OMOP CDM 5.4: one row a person who was observed, and which of these conditions were ever recorded, with all descendants:
--   diabetes: 201820, diabetes mellitus
--   hypertension: 316866, hypertensive disorder
--   heart_failure: 316139, heart failure
--   copd: 255573, chronic obstructive pulmonary disease
WITH persons AS (
    -- A person once, however often the table has them.
    SELECT person_id, max(year_of_birth) AS year_of_birth, max(gender_concept_id) AS gender_concept_id
    FROM person
    GROUP BY person_id
),
conditions AS (
    SELECT
        condition_occurrence.person_id,
        max(CASE WHEN 201820 IN (condition_occurrence.condition_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS diabetes,
        max(CASE WHEN 316866 IN (condition_occurrence.condition_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS hypertension,
        max(CASE WHEN 316139 IN (condition_occurrence.condition_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS heart_failure,
        max(CASE WHEN 255573 IN (condition_occurrence.condition_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS copd
    FROM condition_occurrence
    LEFT JOIN concept_ancestor
        ON concept_ancestor.descendant_concept_id = condition_occurrence.condition_concept_id
        AND concept_ancestor.ancestor_concept_id IN (201820, 316866, 316139, 255573)
    GROUP BY condition_occurrence.person_id
)
SELECT
    persons.person_id,
    CASE WHEN conditions.diabetes = 1 THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension = 1 THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure = 1 THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd = 1 THEN 'yes' ELSE 'no' END AS copd
FROM persons
JOIN (SELECT DISTINCT person_id FROM observation_period) AS observed ON observed.person_id = persons.person_id
LEFT JOIN conditions ON conditions.person_id = persons.person_id
