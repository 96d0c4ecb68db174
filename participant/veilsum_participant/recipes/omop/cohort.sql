-- OMOP CDM 5.4: one row a person who was observed, from all of the tables: who they are, what was ever recorded of conditions and
-- drugs (see conditions.sql and drugs.sql), mean measurements (see measurements.sql) and numbers of visits (see visits.sql).
WITH period AS (
    SELECT person_id, min(observation_period_start_date) AS begins, max(observation_period_end_date) AS ends
    FROM observation_period
    GROUP BY person_id
),
conditions AS (
    SELECT
        condition_occurrence.person_id,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 201820 THEN 1 ELSE 0 END) AS diabetes,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 316866 THEN 1 ELSE 0 END) AS hypertension,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 316139 THEN 1 ELSE 0 END) AS heart_failure,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 255573 THEN 1 ELSE 0 END) AS copd
    FROM condition_occurrence
    JOIN concept_ancestor ON concept_ancestor.descendant_concept_id = condition_occurrence.condition_concept_id
    WHERE concept_ancestor.ancestor_concept_id IN (201820, 316866, 316139, 255573)
    GROUP BY condition_occurrence.person_id
),
drugs AS (
    SELECT
        drug_exposure.person_id,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 1503297 THEN 1 ELSE 0 END) AS metformin,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 21600713 THEN 1 ELSE 0 END) AS insulin,
        max(CASE WHEN concept_ancestor.ancestor_concept_id = 21601855 THEN 1 ELSE 0 END) AS statin
    FROM drug_exposure
    JOIN concept_ancestor ON concept_ancestor.descendant_concept_id = drug_exposure.drug_concept_id
    WHERE concept_ancestor.ancestor_concept_id IN (1503297, 21600713, 21601855)
    GROUP BY drug_exposure.person_id
),
measured AS (
    SELECT
        person_id,
        avg(CASE WHEN measurement_concept_id = 3004410 AND unit_concept_id = 8554 THEN value_as_number END) AS hba1c,
        avg(CASE WHEN measurement_concept_id = 3016723 AND unit_concept_id = 8840 THEN value_as_number END) AS creatinine,
        avg(CASE WHEN measurement_concept_id = 3004249 AND unit_concept_id = 8876 THEN value_as_number END) AS systolic,
        avg(CASE WHEN measurement_concept_id = 3038553 AND unit_concept_id = 9531 THEN value_as_number END) AS bmi
    FROM measurement
    GROUP BY person_id
),
visited AS (
    SELECT
        person_id,
        sum(CASE WHEN visit_concept_id = 9201 THEN 1 ELSE 0 END) AS stays,
        sum(CASE WHEN visit_concept_id IN (9203, 262) THEN 1 ELSE 0 END) AS emergencies
    FROM visit_occurrence
    GROUP BY person_id
)
SELECT
    person.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - person.year_of_birth AS age,
    CASE person.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    CAST(EXTRACT(EPOCH FROM period.ends) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM period.begins) AS float8) / 86400 AS days_observed,
    CASE WHEN conditions.diabetes = 1 THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension = 1 THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure = 1 THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd = 1 THEN 'yes' ELSE 'no' END AS copd,
    CASE WHEN drugs.metformin = 1 THEN 'yes' ELSE 'no' END AS metformin,
    CASE WHEN drugs.insulin = 1 THEN 'yes' ELSE 'no' END AS insulin,
    CASE WHEN drugs.statin = 1 THEN 'yes' ELSE 'no' END AS statin,
    measured.hba1c,
    measured.creatinine,
    measured.systolic,
    measured.bmi,
    coalesce(visited.stays, 0) AS stays,
    coalesce(visited.emergencies, 0) AS emergencies,
    CASE WHEN death.person_id IS NULL THEN 'no' ELSE 'yes' END AS died
FROM person
JOIN period ON period.person_id = person.person_id
LEFT JOIN conditions ON conditions.person_id = person.person_id
LEFT JOIN drugs ON drugs.person_id = person.person_id
LEFT JOIN measured ON measured.person_id = person.person_id
LEFT JOIN visited ON visited.person_id = person.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = person.person_id
