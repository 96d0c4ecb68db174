-- OMOP CDM 5.4: how much of what the tables hold the queries of this recipe leave aside, or may count wrongly, and why. For the site's own
-- eyes: `veilsum participant check --schema` asks it where the dataset names it as misses_file, and no study ever does.
-- Each row: of how many things (of) how many (number) are so (what), and whether that is meant to be
-- left aside; where number is NULL, how many there are.
WITH concepts AS (
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
)
SELECT
    what,
    number,
    of,
    what LIKE '%has no observation period' OR what LIKE '%with an operator%' OR what LIKE '%without a value' OR what LIKE '%of a kind other%' AS meant
FROM (
    SELECT 'person: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM person
    UNION ALL
    SELECT
        'person: stands twice',
        (SELECT count(*) - count(DISTINCT person_id) FROM person),
        (SELECT count(*) FROM person)
    UNION ALL
    SELECT
        'person: has no observation period',
        (SELECT count(DISTINCT person_id) FROM person WHERE person_id NOT IN (SELECT person_id FROM observation_period WHERE person_id IS NOT NULL)),
        (SELECT count(DISTINCT person_id) FROM person)
    UNION ALL
    SELECT
        'person: has no sex that is female or male',
        (SELECT count(DISTINCT person_id) FROM person WHERE coalesce(gender_concept_id, 0) NOT IN (8507, 8532)),
        (SELECT count(DISTINCT person_id) FROM person)
    UNION ALL
    SELECT
        'observation_period: is of no person',
        (SELECT count(*) FROM observation_period WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = observation_period.person_id)),
        (SELECT count(*) FROM observation_period)
    UNION ALL
    SELECT
        'observation_period: ends before it begins, or never',
        (SELECT count(*) FROM observation_period WHERE NOT coalesce(observation_period_end_date >= observation_period_start_date, false)),
        (SELECT count(*) FROM observation_period)
    UNION ALL
    SELECT 'condition_occurrence: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM condition_occurrence
    UNION ALL
    SELECT
        'condition_occurrence: is of no person',
        (SELECT count(*) FROM condition_occurrence WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = condition_occurrence.person_id)),
        (SELECT count(*) FROM condition_occurrence)
    UNION ALL
    SELECT
        'condition_occurrence: stands twice',
        (SELECT count(*) FROM condition_occurrence) - (SELECT count(*) FROM (SELECT DISTINCT person_id, condition_occurrence_id FROM condition_occurrence) AS distinct_rows),
        (SELECT count(*) FROM condition_occurrence)
    UNION ALL
    SELECT
        'condition_occurrence: has no concept (0)',
        (SELECT count(*) FROM condition_occurrence WHERE coalesce(condition_concept_id, 0) = 0),
        (SELECT count(*) FROM condition_occurrence)
    UNION ALL
    SELECT
        'condition_occurrence: begins before its person was born, or after their death',
        (
            SELECT count(*)
            FROM condition_occurrence
            LEFT JOIN (SELECT person_id, max(year_of_birth) AS born FROM person GROUP BY person_id) AS persons
                ON persons.person_id = condition_occurrence.person_id
            LEFT JOIN (SELECT person_id, max(death_date) AS died FROM death GROUP BY person_id) AS deaths
                ON deaths.person_id = condition_occurrence.person_id
            WHERE EXTRACT(YEAR FROM condition_occurrence.condition_start_date) < persons.born OR condition_occurrence.condition_start_date > deaths.died
        ),
        (SELECT count(*) FROM condition_occurrence)
    UNION ALL
    SELECT 'drug_exposure: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM drug_exposure
    UNION ALL
    SELECT
        'drug_exposure: is of no person',
        (SELECT count(*) FROM drug_exposure WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = drug_exposure.person_id)),
        (SELECT count(*) FROM drug_exposure)
    UNION ALL
    SELECT
        'drug_exposure: stands twice',
        (SELECT count(*) FROM drug_exposure) - (SELECT count(*) FROM (SELECT DISTINCT person_id, drug_exposure_id FROM drug_exposure) AS distinct_rows),
        (SELECT count(*) FROM drug_exposure)
    UNION ALL
    SELECT
        'drug_exposure: has no concept (0)',
        (SELECT count(*) FROM drug_exposure WHERE coalesce(drug_concept_id, 0) = 0),
        (SELECT count(*) FROM drug_exposure)
    UNION ALL
    SELECT
        'drug_exposure: begins before its person was born, or after their death',
        (
            SELECT count(*)
            FROM drug_exposure
            LEFT JOIN (SELECT person_id, max(year_of_birth) AS born FROM person GROUP BY person_id) AS persons
                ON persons.person_id = drug_exposure.person_id
            LEFT JOIN (SELECT person_id, max(death_date) AS died FROM death GROUP BY person_id) AS deaths
                ON deaths.person_id = drug_exposure.person_id
            WHERE EXTRACT(YEAR FROM drug_exposure.drug_exposure_start_date) < persons.born OR drug_exposure.drug_exposure_start_date > deaths.died
        ),
        (SELECT count(*) FROM drug_exposure)
    UNION ALL
    SELECT 'measurement: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM measurement
    UNION ALL
    SELECT
        'measurement: is of no person',
        (SELECT count(*) FROM measurement WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = measurement.person_id)),
        (SELECT count(*) FROM measurement)
    UNION ALL
    SELECT
        'measurement: stands twice',
        (SELECT count(*) FROM measurement) - (SELECT count(*) FROM (SELECT DISTINCT person_id, measurement_id FROM measurement) AS distinct_rows),
        (SELECT count(*) FROM measurement)
    UNION ALL
    SELECT
        'measurement: has no concept (0)',
        (SELECT count(*) FROM measurement WHERE coalesce(measurement_concept_id, 0) = 0),
        (SELECT count(*) FROM measurement)
    UNION ALL
    SELECT
        'measurement: begins before its person was born, or after their death',
        (
            SELECT count(*)
            FROM measurement
            LEFT JOIN (SELECT person_id, max(year_of_birth) AS born FROM person GROUP BY person_id) AS persons
                ON persons.person_id = measurement.person_id
            LEFT JOIN (SELECT person_id, max(death_date) AS died FROM death GROUP BY person_id) AS deaths
                ON deaths.person_id = measurement.person_id
            WHERE EXTRACT(YEAR FROM measurement.measurement_date) < persons.born OR measurement.measurement_date > deaths.died
        ),
        (SELECT count(*) FROM measurement)
    UNION ALL
    SELECT 'visit_occurrence: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM visit_occurrence
    UNION ALL
    SELECT
        'visit_occurrence: is of no person',
        (SELECT count(*) FROM visit_occurrence WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = visit_occurrence.person_id)),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: stands twice',
        (SELECT count(*) FROM visit_occurrence) - (SELECT count(*) FROM (SELECT DISTINCT person_id, visit_occurrence_id FROM visit_occurrence) AS distinct_rows),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: has no concept (0)',
        (SELECT count(*) FROM visit_occurrence WHERE coalesce(visit_concept_id, 0) = 0),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: begins before its person was born, or after their death',
        (
            SELECT count(*)
            FROM visit_occurrence
            LEFT JOIN (SELECT person_id, max(year_of_birth) AS born FROM person GROUP BY person_id) AS persons
                ON persons.person_id = visit_occurrence.person_id
            LEFT JOIN (SELECT person_id, max(death_date) AS died FROM death GROUP BY person_id) AS deaths
                ON deaths.person_id = visit_occurrence.person_id
            WHERE EXTRACT(YEAR FROM visit_occurrence.visit_start_date) < persons.born OR visit_occurrence.visit_start_date > deaths.died
        ),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: ends before it begins, or never',
        (SELECT count(*) FROM visit_occurrence WHERE NOT coalesce(visit_end_date >= visit_start_date, false)),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: is of a kind other than inpatient, outpatient and emergency',
        (SELECT count(*) FROM visit_occurrence WHERE visit_concept_id <> 0 AND visit_concept_id NOT IN (SELECT concept_id FROM concepts)),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'concept_ancestor: read, without which nothing is known of descendants',
        CAST(NULL AS integer),
        (SELECT count(*) FROM concept_ancestor)
    UNION ALL
    SELECT
        'measurement: hba1c in another unit than %',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410 AND coalesce(unit_concept_id, 0) <> 8554),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410)
    UNION ALL
    SELECT
        'measurement: hba1c with an operator, such as <',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410 AND coalesce(operator_concept_id, 0) NOT IN (0, 4172703)),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410)
    UNION ALL
    SELECT
        'measurement: hba1c without a value',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410 AND value_as_number IS NULL),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004410)
    UNION ALL
    SELECT
        'measurement: creatinine in another unit than mg/dL',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723 AND coalesce(unit_concept_id, 0) <> 8840),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723)
    UNION ALL
    SELECT
        'measurement: creatinine with an operator, such as <',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723 AND coalesce(operator_concept_id, 0) NOT IN (0, 4172703)),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723)
    UNION ALL
    SELECT
        'measurement: creatinine without a value',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723 AND value_as_number IS NULL),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3016723)
    UNION ALL
    SELECT
        'measurement: systolic in another unit than mmHg',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249 AND coalesce(unit_concept_id, 0) <> 8876),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249)
    UNION ALL
    SELECT
        'measurement: systolic with an operator, such as <',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249 AND coalesce(operator_concept_id, 0) NOT IN (0, 4172703)),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249)
    UNION ALL
    SELECT
        'measurement: systolic without a value',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249 AND value_as_number IS NULL),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3004249)
    UNION ALL
    SELECT
        'measurement: bmi in another unit than kg/m2',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553 AND coalesce(unit_concept_id, 0) <> 9531),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553)
    UNION ALL
    SELECT
        'measurement: bmi with an operator, such as <',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553 AND coalesce(operator_concept_id, 0) NOT IN (0, 4172703)),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553)
    UNION ALL
    SELECT
        'measurement: bmi without a value',
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553 AND value_as_number IS NULL),
        (SELECT count(*) FROM measurement WHERE measurement_concept_id = 3038553)
) AS misses
