-- Parts of this recipe's queries. Each is written into a query in place of a line "@part name=value", and has the values in place of <name>,
-- so that the files that a site gets stand and can be changed each by itself.
-- @persons
persons AS (
    -- A person once, however often the table has them.
    SELECT person_id, max(year_of_birth) AS year_of_birth, max(gender_concept_id) AS gender_concept_id
    FROM person
    GROUP BY person_id
)
-- @period
period AS (
    -- When a person was first observed, and days within their observation periods, each once; those between two are not among them.
    SELECT
        person_id,
        min(begins) AS begins,
        sum(CASE WHEN ends >= begins THEN greatest(0, last_day - greatest(first_day, reached)) END) AS days
    FROM (
        SELECT *, max(last_day) OVER (PARTITION BY person_id ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
        FROM (
            SELECT
                person_id,
                observation_period_start_date AS begins,
                observation_period_end_date AS ends,
                CAST(EXTRACT(EPOCH FROM observation_period_start_date) AS float8) / 86400 AS first_day,
                CAST(EXTRACT(EPOCH FROM observation_period_end_date) AS float8) / 86400 AS last_day
            FROM observation_period
        ) AS periods
    ) AS after_others
    GROUP BY person_id
)
-- @conditions
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
-- @drugs
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
)
-- @measured
measures(kind, concept, unit) AS (
    VALUES ('hba1c', 3004410, 8554), ('creatinine', 3016723, 8840), ('systolic', 3004249, 8876), ('bmi', 3038553, 9531)
),
measured AS (
    -- A value with an operator other than =, such as < 5, is none, and so is one beyond 1e9: on its sum or its square the query could fail.
    SELECT DISTINCT
        person_id,
        measurement_id,
        kind,
        measurement_date,
        CASE
            WHEN value_as_number BETWEEN -1e-9 AND 1e-9 THEN 0
            WHEN value_as_number BETWEEN -1e9 AND 1e9 THEN CAST(value_as_number AS float8)
        END AS value
    FROM measurement
    JOIN measures ON concept = measurement_concept_id AND unit = unit_concept_id
    WHERE coalesce(operator_concept_id, 0) IN (0, 4172703)
)
-- @concepts
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
)
-- @visits
visits AS (
    SELECT DISTINCT person_id, visit_occurrence_id, visit_concept_id, visit_start_date, visit_end_date
    FROM visit_occurrence
)
-- @days
CASE
    WHEN <end> >= <start> THEN CAST(EXTRACT(EPOCH FROM <end>) AS float8) / 86400 - CAST(EXTRACT(EPOCH FROM <start>) AS float8) / 86400
END AS <as>
-- @table
SELECT '<table>: read', CAST(NULL AS integer), count(*) FROM <table>
UNION ALL
SELECT
    '<table>: is of no person',
    (SELECT count(*) FROM <table> WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = <table>.person_id)),
    (SELECT count(*) FROM <table>)
UNION ALL
SELECT
    '<table>: stands twice',
    (SELECT count(*) FROM <table>) - (SELECT count(*) FROM (SELECT DISTINCT person_id, <table>_id FROM <table>) AS distinct_rows),
    (SELECT count(*) FROM <table>)
UNION ALL
SELECT
    '<table>: has no concept (0)',
    (SELECT count(*) FROM <table> WHERE coalesce(<concept>, 0) = 0),
    (SELECT count(*) FROM <table>)
UNION ALL
SELECT
    '<table>: begins before its person was born, or after their death',
    (
        SELECT count(*)
        FROM <table>
        LEFT JOIN (SELECT person_id, max(year_of_birth) AS born FROM person GROUP BY person_id) AS persons ON persons.person_id = <table>.person_id
        LEFT JOIN (SELECT person_id, max(death_date) AS died FROM death GROUP BY person_id) AS deaths ON deaths.person_id = <table>.person_id
        WHERE EXTRACT(YEAR FROM <table>.<start>) < persons.born OR <table>.<start> > deaths.died
    ),
    (SELECT count(*) FROM <table>)
-- @measure
SELECT
    'measurement: <kind> in another unit than <called>',
    (SELECT count(*) FROM measurement WHERE measurement_concept_id = <concept> AND coalesce(unit_concept_id, 0) <> <unit>),
    (SELECT count(*) FROM measurement WHERE measurement_concept_id = <concept>)
UNION ALL
SELECT
    'measurement: <kind> with an operator, such as <',
    (SELECT count(*) FROM measurement WHERE measurement_concept_id = <concept> AND coalesce(operator_concept_id, 0) NOT IN (0, 4172703)),
    (SELECT count(*) FROM measurement WHERE measurement_concept_id = <concept>)
UNION ALL
SELECT
    'measurement: <kind> without a value',
    (
        SELECT count(*)
        FROM measurement
        WHERE measurement_concept_id = <concept>
            AND (value_as_number IS NULL OR value_as_number NOT BETWEEN -1e9 AND 1e9)
    ),
    (SELECT count(*) FROM measurement WHERE measurement_concept_id = <concept>)
