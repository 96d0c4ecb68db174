-- OMOP CDM 5.4: one row a person who was observed, from all of the tables: who they are, what was ever recorded of conditions and
-- drugs (see conditions.sql and drugs.sql), mean measurements (see measurements.sql) and numbers of visits (see visits.sql).
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
),
drugs AS (
    SELECT
        drug_exposure.person_id,
        max(CASE WHEN 1503297 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS metformin,
        max(CASE WHEN 21600713 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS insulin,
        max(CASE WHEN 21601855 IN (drug_exposure.drug_concept_id, concept_ancestor.ancestor_concept_id) THEN 1 ELSE 0 END) AS statin
    FROM drug_exposure
    LEFT JOIN concept_ancestor
        ON concept_ancestor.descendant_concept_id = drug_exposure.drug_concept_id
        AND concept_ancestor.ancestor_concept_id IN (1503297, 21600713, 21601855)
    GROUP BY drug_exposure.person_id
),
measures AS (
    -- A value with an operator other than =, such as < 5, is none.
    SELECT DISTINCT person_id, measurement_id, measurement_concept_id, unit_concept_id, measurement_date, value_as_number
    FROM measurement
    WHERE coalesce(operator_concept_id, 0) IN (0, 4172703)
),
measured AS (
    SELECT
        person_id,
        avg(CASE WHEN measurement_concept_id = 3004410 AND unit_concept_id = 8554 THEN value_as_number END) AS hba1c,
        avg(CASE WHEN measurement_concept_id = 3016723 AND unit_concept_id = 8840 THEN value_as_number END) AS creatinine,
        avg(CASE WHEN measurement_concept_id = 3004249 AND unit_concept_id = 8876 THEN value_as_number END) AS systolic,
        avg(CASE WHEN measurement_concept_id = 3038553 AND unit_concept_id = 9531 THEN value_as_number END) AS bmi
    FROM measures
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
),
visited AS (
    SELECT
        visits.person_id,
        sum(CASE WHEN concepts.kind IN ('inpatient', 'emergency and inpatient') THEN 1 ELSE 0 END) AS stays,
        sum(CASE WHEN concepts.kind IN ('emergency', 'emergency and inpatient') THEN 1 ELSE 0 END) AS emergencies
    FROM visits
    JOIN concepts ON concepts.concept_id = visits.visit_concept_id
    GROUP BY visits.person_id
)
SELECT
    persons.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - persons.year_of_birth AS age,
    CASE persons.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    CASE
        WHEN period.ends >= period.begins
            THEN CAST(EXTRACT(EPOCH FROM period.ends) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM period.begins) AS float8) / 86400
    END AS days_observed,
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
FROM persons
JOIN period ON period.person_id = persons.person_id
LEFT JOIN conditions ON conditions.person_id = persons.person_id
LEFT JOIN drugs ON drugs.person_id = persons.person_id
LEFT JOIN measured ON measured.person_id = persons.person_id
LEFT JOIN visited ON visited.person_id = persons.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = persons.person_id
